-- Read all models of the registry if they changed since the caller read them.
-- Arguments: version the caller knows
-- Answers {version, false if the caller knows it, else {name, declared JSON, measured JSON, pins, created ms}, by name}
local version = tonumber(redis.call('GET', P .. 'models:version') or 0)
if version == ARG[1] then return cmsgpack.pack({{}, {version, false}}) end
local rows = {}
for _, name in ipairs(redis.call('ZRANGE', P .. 'models', 0, -1)) do
  local row = redis.call('HMGET', P .. 'm:' .. name, 'declared', 'measured', 'pins', 'created')
  rows[#rows + 1] = {name, row[1] or '', row[2] or '', row[3] or '', tonumber(row[4] or 0)}
end
return cmsgpack.pack({{}, {version, rows}})
