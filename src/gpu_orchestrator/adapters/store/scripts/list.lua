-- A page of tasks, newest first.
-- Arguments: states (empty: all), worker or '', owner or '' for all, offset, limit
-- Answers {total, ids}
local states, worker, owner, offset, limit = ARG[1], ARG[2], ARG[3], ARG[4], ARG[5]
local place = owner == '' and 's:' or 'o:' .. owner .. ':'
local all = {'queued', 'assigned', 'running', 'completed', 'failed', 'cancelled', 'dead'}
local wanted = {}
for _, state in ipairs(#states > 0 and states or all) do wanted[state] = true end
local found, total = {}, 0
if worker ~= '' then
  for _, id in ipairs(redis.call('ZREVRANGE', P .. 'of:' .. worker, 0, -1)) do
    local row = redis.call('HMGET', P .. 't:' .. id, 'state', 'worker', 'tenant')
    if row[2] == worker and wanted[row[1]] and may_touch(owner, row[3]) then
      total = total + 1
      if total > offset and #found < limit then found[#found + 1] = id end
    end
  end
  return cmsgpack.pack({{}, {total, found}})
end
local heads = {}
for state in pairs(wanted) do
  total = total + redis.call('ZCARD', P .. place .. state)
  local page = redis.call('ZREVRANGE', P .. place .. state, 0, offset + limit - 1, 'WITHSCORES')
  for at = 1, #page, 2 do heads[#heads + 1] = {page[at], tonumber(page[at + 1])} end
end
table.sort(heads, function(a, b) if a[2] == b[2] then return a[1] > b[1] end return a[2] > b[2] end)
for at = offset + 1, math.min(offset + limit, #heads) do found[#found + 1] = heads[at][1] end
return cmsgpack.pack({{}, {total, found}})
