"""Clients of the HTTP service."""

from serving.client.calls import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
