"""A client script of NVFlare: its site's mean, one step from the global model towards it."""

import numpy as np
import nvflare.client as flare

flare.init()
mean = 1.0 if flare.get_site_name() == "site-1" else 3.0
while flare.is_running():
    model = flare.receive()
    weights = np.asarray(model.params["numpy_key"], dtype=np.float32)
    update = {"numpy_key": 0.5 * (mean - weights)}
    flare.send(
        flare.FLModel(
            params=update,
            params_type=flare.ParamsType.DIFF,
            metrics={"accuracy": 0.75},
            meta={"NUM_STEPS_CURRENT_ROUND": 17},
        )
    )
