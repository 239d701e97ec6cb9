"""The torch side: what runs a plan with real tensors."""
