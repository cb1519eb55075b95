"""The same work by other means. Each program here stands alone: it needs torch and its own simulator, not raysim."""
