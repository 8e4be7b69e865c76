"""Scoring over HTTP; owns stored beliefs."""
