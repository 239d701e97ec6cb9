"""How bytes get from worker to worker: one file per transport behind one protocol."""
