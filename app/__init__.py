"""The service: what a client or an operator touches.

The way of a request that comes over a socket:

    transport/websocket_protocol, socket          a frame is taken
    wire/common, responses                        its JSON is bounded and read: a message
    transport/socket_lanes                        which waits for its turn in its lane
    responses/registry, parse                     a response begins: a request in words of no API
    generate/begin, admission                     it is checked, and admitted
    prompt/conversation, system_prompts,
        template, plain_text                      its conversation becomes token ids
    generate/engine_request                       and what the engine is asked; `begin` hands it on

and of what comes back, be it read over a socket or as server-sent events:

    generate/generation, lines, detokenizer       tokens become text that is safe to show
    responses/run, render, event_log              and events, which are numbered and kept
    transport/socket_lanes, socket_writer         and sent
"""
