"""The random state of a process, as one more object of a snapshot."""

import pickle
import random
from typing import Any

import numpy as np
import torch


class RandomState:
    """Python's, numpy's and torch's."""

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            # As one piece: it is made of 625 numbers, and looked through at every step.
            "python": pickle.dumps(random.getstate()),
            "numpy": np.random.get_state(),
            "torch": torch.get_rng_state(),
        }
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        random.setstate(pickle.loads(state_dict["python"]))
        np.random.set_state(state_dict["numpy"])
        torch.set_rng_state(state_dict["torch"])
        if "cuda" in state_dict and torch.cuda.is_available():
            torch.cuda.set_rng_state(state_dict["cuda"])
