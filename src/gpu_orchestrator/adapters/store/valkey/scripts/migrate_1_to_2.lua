-- Migrate tasks from version 1 to 2: list them by owner, and replace the id of their key with the name of its owner.
-- Arguments: cursor of a scan, about how many keys to scan, {id of a key in version 1, owner, ...}
-- Answers {next cursor, number of tasks}. Safe to repeat
local owners, tasks = {}, 0
for at = 1, #ARG[3], 2 do owners[ARG[3][at]] = ARG[3][at + 1] end
local found = redis.call('SCAN', ARG[1], 'MATCH', P .. '*', 'COUNT', ARG[2])
for _, key in ipairs(found[2]) do
  local name = string.sub(key, #P + 1)
  local id = string.match(name, '^t:(.*)$')
  local before, rest = string.match(name, '^idem:([^:]*):(.*)$')
  if id then
    local row = redis.call('HMGET', key, 'state', 'created', 'tenant', 'spec')
    local owner = owners[row[3]] or row[3]
    if owner ~= row[3] then
      -- In the spec too, because a repeated submission is compared with it.
      local spec = string.gsub(row[4], '"tenant":"' .. row[3] .. '"', function() return '"tenant":"' .. owner .. '"' end)
      redis.call('HSET', key, 'tenant', owner, 'spec', spec)
    end
    enlist(id, row[1], row[2], owner)
    tasks = tasks + 1
  elseif before and owners[before] then
    redis.call('RENAME', key, P .. 'idem:' .. owners[before] .. ':' .. rest)
  end
end
return answer(0, {found[1], tasks})
