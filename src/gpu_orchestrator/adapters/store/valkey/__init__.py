"""The Valkey server: the client, the Lua scripts, the embedded server, migrations, backup."""
