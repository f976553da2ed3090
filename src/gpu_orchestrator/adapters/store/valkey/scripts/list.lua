-- Read a page of tasks, newest first.
-- Arguments: states (empty: all), worker or '', owner or '' for all, offset, limit, created since (ms; negative: this
--   many ms ago; 0: ever); of a worker also the task type or '', and labels {key, value} or {key} each: its list is short
-- Answers {total, ids, 0 if older tasks of the worker may be missing else 1}
local states, worker, owner, offset, limit, since = ARG[1], ARG[2], ARG[3], ARG[4], ARG[5], ARG[6]
local task_type, labels = ARG[7], ARG[8]
if since < 0 then since = NOW + since end
local place = owner == '' and 's:' or 'o:' .. owner .. ':'
local NEAR = 1000
local LATEST_OF_WORKER = 1000 -- `trim` leaves this many in a worker's list
local MOST_BYTES = 8 * 1024 * 1024 -- of specs, whose labels may have 64 kB each: other clients wait meanwhile
local all = {'scheduled', 'queued', 'assigned', 'running', 'completed', 'failed', 'cancelled', 'dead'}
local wanted = {}
for _, state in ipairs(#states > 0 and states or all) do wanted[state] = true end
local found, total = {}, 0

-- Count the wanted tasks that were created after a moment.
local function after(moment)
  local newer = 0
  for state in pairs(wanted) do newer = newer + redis.call('ZCOUNT', P .. place .. state, '(' .. moment, '+inf') end
  return newer
end

-- Find, by bisection, the moment from which a page far back can be read: no more tasks were created after it than the
-- page skips. Reading and sorting all tasks before the page would block all other clients for seconds.
local function moment_of(leave_out)
  if leave_out <= NEAR then return '+inf' end
  local from, to = NOW, 0
  for state in pairs(wanted) do
    local first = redis.call('ZRANGE', P .. place .. state, 0, 0, 'WITHSCORES')[2]
    local last = redis.call('ZRANGE', P .. place .. state, -1, -1, 'WITHSCORES')[2]
    if first then from, to = math.min(from, tonumber(first)), math.max(to, tonumber(last)) end
  end
  while from < to do
    local middle = math.floor((from + to) / 2)
    if after(text(middle)) <= leave_out then to = middle else from = middle + 1 end
  end
  return text(from)
end

if worker ~= '' then
  local is_wanted, reads_spec, bytes = matcher(task_type, labels), task_type ~= '' or #labels > 0, 0
  local latest = redis.call('ZREVRANGE', P .. 'of:' .. worker, 0, -1)
  for _, id in ipairs(latest) do
    local row = redis.call('HMGET', P .. 't:' .. id, 'state', 'worker', 'tenant', 'created')
    if row[2] == worker and wanted[row[1]] and may_touch(owner, row[3]) and tonumber(row[4]) >= since
      and bytes <= MOST_BYTES then
      local spec = reads_spec and redis.call('HGET', P .. 't:' .. id, 'spec')
      bytes = bytes + (spec and #spec or 0)
      if is_wanted(spec) then
        total = total + 1
        if total > offset and #found < limit then found[#found + 1] = id end
      end
    end
  end
  return cmsgpack.pack({{}, {total, found, (#latest < LATEST_OF_WORKER and bytes <= MOST_BYTES) and 1 or 0}})
end
for state in pairs(wanted) do
  local key = P .. place .. state
  total = total + (since > 0 and redis.call('ZCOUNT', key, text(since), '+inf') or redis.call('ZCARD', key))
end
limit = math.min(limit, math.max(total - offset, 0)) -- tasks created before `since` come after all others
local moment = moment_of(offset)
local left_out = offset - after(moment)
local heads = {}
for state in pairs(wanted) do
  local key = P .. place .. state
  local newer = redis.call('ZCOUNT', key, '(' .. moment, '+inf')
  local page = redis.call('ZREVRANGE', key, newer, newer + left_out + limit - 1, 'WITHSCORES')
  for at = 1, #page, 2 do heads[#heads + 1] = {page[at], tonumber(page[at + 1])} end
end
table.sort(heads, function(a, b) if a[2] == b[2] then return a[1] > b[1] end return a[2] > b[2] end)
for at = left_out + 1, math.min(left_out + limit, #heads) do found[#found + 1] = heads[at][1] end
return cmsgpack.pack({{}, {total, found, 1}})
