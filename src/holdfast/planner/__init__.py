"""Which plan to run: strategies, one cost model, one score, one decision."""
