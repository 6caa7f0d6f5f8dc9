"""`hvdlite.keras` under Horovod's other name for it."""

import sys

import hvdlite.keras
import hvdlite.keras.callbacks

sys.modules[__name__] = hvdlite.keras
sys.modules[f"{__name__}.callbacks"] = hvdlite.keras.callbacks
