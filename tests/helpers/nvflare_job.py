"""FedAvg over two sites in NVFlare's simulator, with the filter: ``nvflare_job.py FOLDER``."""

import sys
from pathlib import Path

from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.client.config import TransferType
from nvflare.recipe import SimEnv

from dpmesh.deploy.nvflare import PrivateUpdate

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    recipe = NumpyFedAvgRecipe(
        name="private_average",
        model=[0.0, 0.0, 0.0],
        min_clients=2,
        num_rounds=3,
        train_script=str(Path(__file__).with_name("nvflare_client.py")),
        params_transfer_type=TransferType.DIFF,
    )
    recipe.add_client_output_filter(
        PrivateUpdate(
            clipping_norm=1.0,
            noise_multiplier=8.0,
            epsilon=1.8,
            delta=1e-5,
            ledger=str(folder / "{site}.sqlite"),
        ),
        tasks=["train", "validate", "submit_model"],
    )
    run = recipe.execute(SimEnv(num_clients=2, workspace_root=str(folder / "simulation")))
    print(run.get_result())
