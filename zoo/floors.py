"""The least cosines between an image's embedding by torch and by a variant that may still be called the same model."""

from __future__ import annotations

EXPORT_FLOORS = {"fp32": 0.99999, "fp16": 0.9999, "int8": 0.95}
"""Of a graph that `zoo export` has just made, to torch's embedding on the same machine.

fp32: the same arithmetic in another order; 0.99999 is an angle of 0.26 degrees, far above rounding.
fp16: each result is rounded to 11 bits, 0.05 %; fifty layers of that add up to about 0.4 %, a cosine of 0.99999, and
deep or badly scaled networks get ten times that squared loss: 0.9999.
int8: 256 steps over a range that few values fill: some 0.7 % a layer, 5 % after fifty, 0.999; images with values past
the calibrated range fare worse, hence 0.95. Its cost in retrieval is measured beside it.
"""

RESIZE_FLOOR = 0.99
"""Of a graph that resizes to the same graph behind Pillow: a step of 1 in 255 is 0.4 %, and int8 may make some 2 % of
it."""

GOLDEN_FLOORS = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.95, "int8": 0.95}
"""Of what a variant gives now to the golden embedding that the model folder holds (`zoo verify`, /readyz).

That one is of another machine and other versions of the libraries, and images were decoded and resized there: ten times
the squared loss of `EXPORT_FLOORS` is granted. int8's floor leaves room for this already. bf16 rounds eight times as
coarsely as fp16, which makes 64 times its squared loss: 0.99936 where fp16 gives 0.99999, and ten times that in badly
scaled networks.
"""

GOLDEN_RESIZE_FLOORS = {"fp32": 0.99, "fp16": 0.99, "int8": 0.9}
"""Of what a graph that resizes gives now to the golden embedding. The angles of `RESIZE_FLOOR` (8 degrees) and of
`GOLDEN_FLOORS` add up at worst, which is little but for int8: 8 and 18 degrees are a cosine of 0.9.
"""
