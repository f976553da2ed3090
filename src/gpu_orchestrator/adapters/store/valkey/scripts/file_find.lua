-- Read files, and keep them longer if they are used.
-- Arguments: owner or '' for all, ids, for how many ms from now they are kept, 0 to change nothing
-- Answers per id its row, with `expires`; empty for an unknown one and for that of another owner
local owner, ids, keep_ms = ARG[1], ARG[2], ARG[3]
local found = {}
for number, id in ipairs(ids) do
  local key = P .. 'file:' .. id
  local row = redis.call('HGETALL', key)
  local known = redis.call('HMGET', key, 'owner', 'bytes', 'at')
  found[number] = {}
  if known[1] and may_touch(owner, known[1]) then
    local until_ms = redis.call('PEXPIRETIME', key)
    if keep_ms > 0 and NOW + keep_ms > until_ms then
      until_ms = NOW + keep_ms
      redis.call('PEXPIREAT', key, until_ms)
      redis.call('ZADD', P .. 'files:' .. known[1], 'XX', until_ms, known[2] .. ' ' .. id)
      redis.call('PEXPIREAT', P .. 'files:' .. known[1], until_ms + 1000, 'GT')
      redis.call('ZADD', P .. 'results', 'XX', until_ms, known[3])
    end
    row[#row + 1], row[#row + 2] = 'expires', text(until_ms)
    found[number] = row
  end
end
return cmsgpack.pack({{}, found})
