"""A service whose gallery is a copy of another service's, kept up with it over HTTP, so that several hosts share one.

The primary hands out what changed (serving.following.handing_out). A follower asks for it before it answers a query,
and takes it over (serving.following.follower); changes that clients send to it it passes on
(serving.following.passing_on).
"""
