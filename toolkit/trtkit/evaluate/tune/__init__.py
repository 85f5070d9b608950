"""The best draft length at each load: a sweep by halving, its report, and the schedule a build is served by."""
