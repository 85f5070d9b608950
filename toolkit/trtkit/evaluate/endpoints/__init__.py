"""Deployments as something that answers prompts, whatever serves them."""
