"""A black-box test of any OpenAI-compatible server: does what one tenant sent show to another?

"Auditing Prompt Caching in Language Model APIs" (Gu et al., ICML 2025) for everything a client can
see, not for the time to the first token alone. (The audit log of who changed what is in
`tenants.writes.audit`.)
"""
