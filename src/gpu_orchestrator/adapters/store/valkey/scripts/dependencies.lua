-- Look at tasks that others are to depend on.
-- Arguments: ids
-- Answers per id {owner, its state or '' if it is unknown, how many tasks wait for it}
local found = {}
for number, id in ipairs(ARG[1]) do
  local owner, state = unpack(redis.call('HMGET', P .. 't:' .. id, 'tenant', 'state'), 1, 2)
  found[number] = {owner or '', state or '', redis.call('SCARD', P .. 'after:' .. id)}
end
return cmsgpack.pack({{}, found})
