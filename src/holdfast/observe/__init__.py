"""What Holdfast shows: timelines, traces, reports. Nothing is decided from it."""
