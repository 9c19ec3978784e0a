"""A checkpoint behind HTTP: how requests are read, batched, limited and answered.

    t5x_lite.serve.batching    texts of many requests -> batches of few static shapes, in a thread
    t5x_lite.serve.requests      the bounds of a request, and what a refusal says
    t5x_lite.serve.requests    bytes -> a checked JSON object
    t5x_lite.serve.app         the ASGI application: endpoints, health, metrics, the page
    t5x_lite.serve.server connections that are too slow or too many are cut
    t5x_lite.serve.server      from start to a clean end

The package knows nothing of models: `t5x_lite.serve.endpoints` has the table of what is answered.
Starlette, uvicorn and prometheus_client (extra `serve`) are imported in app, counts, connections
and server, which only the command `serve` imports.
"""
