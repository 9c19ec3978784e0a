"""A checkpoint behind HTTP: how requests are read, batched, limited and answered.

    t5x_lite.serve.batching     texts of many requests -> batches of few static shapes, in a thread
    t5x_lite.serve.requests     bytes -> a checked JSON object; limits of a request, and errors
    t5x_lite.serve.app          the ASGI application: endpoints, health, metrics, the page
    t5x_lite.serve.server       HTTP connections with time limits and a maximum number, counters
    t5x_lite.serve.serving      from start to a clean end

The package does not depend on models: `t5x_lite.serve.endpoints` has the table of endpoints.
Starlette, uvicorn and prometheus_client (extra `serve`) are imported in app, server and serving,
which only the command `serve` imports.
"""
