"""Copies of this broker's log on other machines, and the other way round."""
