"""Stopping when a metric gets no better, which a run that is continued knows that it has done."""
