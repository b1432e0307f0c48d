"""Image search: a gallery on disk, an HTTP service over it and a web page.

Needs the extra `serve` for the service; the gallery itself needs only FAISS. No module here loads torch.
"""

import os

# BentoML reports usage to its makers unless told not to, and reads this when it starts to serve.
os.environ["BENTOML_DO_NOT_TRACK"] = "True"
