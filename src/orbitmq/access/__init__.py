"""Who may do what: users, policies, and the gate that every request passes. Shared by broker and name server."""
