"""Campaigns: proposals that come one after the other, each kept or discarded with evidence."""
