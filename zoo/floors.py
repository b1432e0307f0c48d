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

GOLDEN_FLOORS = {"fp32": 0.9999, "fp16": 0.999, "int8": 0.95}
"""Of what a variant gives now to the golden embedding that the model folder holds (`zoo verify`, /readyz).

That one is of another machine and other versions of the libraries, and images were decoded and resized there: ten times
the squared loss of `EXPORT_FLOORS` is granted. int8's floor leaves room for this already.
"""
