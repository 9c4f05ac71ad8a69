"""Campaigns: proposals that come sequentially, each kept or discarded with evidence."""
