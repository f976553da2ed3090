"""Everything specific to Valkey: client, Lua scripts, embedded server, migrations, backup."""
