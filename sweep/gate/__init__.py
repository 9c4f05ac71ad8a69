"""Campaigns: a sequence of proposed changes, each of which is kept or discarded by a statistical
test.
"""
