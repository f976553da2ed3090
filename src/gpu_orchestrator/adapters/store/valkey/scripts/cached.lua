-- Find completed tasks by the keys of the result cache.
-- Arguments: keys {owner:digest}
-- Answers per key {id or '' if there is none, created, 0, state, worker}
local found = {}
for number, name in ipairs(ARG[1]) do
  local id = redis.call('GET', P .. 'res:' .. name)
  local state, created, worker
  if id then state, created, worker = unpack(redis.call('HMGET', P .. 't:' .. id, 'state', 'created', 'worker'), 1, 3) end
  found[number] = state == 'completed' and {id, tonumber(created), 0, state, worker or ''} or {'', 0, 0, '', ''}
end
return cmsgpack.pack({{}, found})
