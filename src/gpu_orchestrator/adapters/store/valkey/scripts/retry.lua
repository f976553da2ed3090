-- Queue tasks again that ended without a result, with all their retries, if there is room for them. They may begin at
-- once, but for dependencies that have not ended (because they were retried first), and do not expire. A gang is retried
-- whole, if all its members have ended.
-- Arguments: fence, owner whose tasks may be retried or '' for all, ids, unit as in `submit`
-- Answers per id {state before or '' if unknown, 0, or the code -2 | -3 | -4 of `submit` if it was not queued, ms until
--   the next day}; only failed, dead and cancelled tasks are queued
local fence, owner, ids, unit = ARG[1], ARG[2], ARG[3], ARG[4]

local function verdict(tenant, level, count)
  local waiting = tonumber(redis.call('HGET', P .. 'levels', level or '') or 0) + (LEVELS[level or ''] or 0)
  if unit[4] > 0 and tonumber(redis.call('HGET', P .. 'used:' .. day(), tenant) or 0) >= unit[4] then return -4 end
  local place = P .. 'o:' .. tenant .. ':'
  local own = redis.call('ZCARD', place .. 'queued') + redis.call('ZCARD', place .. 'scheduled')
  if unit[2] > 0 and own + count > unit[2] then return -2 end
  return unit[3] > 0 and waiting + count > unit[3] and -3 or 0
end

local function waits_again(needs)
  for other in string.gmatch(needs, ' (%S+)') do
    local state = redis.call('HGET', P .. 't:' .. other, 'state')
    if state and not ENDS[state] then return true end
  end
  return false
end

local function retry(id, row)
  local key, state = P .. 't:' .. id, row[1]
  redis.call('PERSIST', key)
  redis.call('ZREM', P .. 'ended', ended_entry(id, state, row[2]))
  redis.call('PERSIST', P .. 'log:' .. id)
  redis.call('PERSIST', P .. 'log:' .. id .. VALUES)
  redis.call('HDEL', key, 'finished', 'progress', 'callback', 'callback_tries', 'not_before', 'expires')
  redis.call('ZREM', P .. 'callbacks', id)
  local fields = {'tries', '0', 'deaths', '', 'cancel', '0', 'error', '', 'reason', 'retried by hand'}
  if row[4] and waits_again(row[4]) then
    redis.call('HSET', key, 'state', 'scheduled', 'open', '-1', 'worker', '', unpack(fields))
    move(id, state, 'scheduled', row[5], row[2])
  else
    requeue(id, state, 0, fields)
  end
  if row[4] then see_to_links(id) end
end

local function row_of(id)
  return redis.call('HMGET', P .. 't:' .. id, 'state', 'tenant', 'level', 'needs', 'created', 'gang')
end

local function may_retry(state) return state == 'failed' or state == 'dead' or state == 'cancelled' end

-- With one member of a gang all are retried. RETRIED: the state before of each of these. Returns the state of a member that
-- keeps them from it: it has not ended, or is no longer known ('').
local RETRIED = {}
local function retry_gang(id, size)
  local gang, rows = gang_of(id), {}
  for rank = 0, size - 1 do
    local member = member_id(gang, rank)
    rows[member] = row_of(member)
    local state = rows[member][1]
    if not may_retry(state) then return state or '' end
  end
  for member, row in pairs(rows) do
    retry(member, row)
    RETRIED[member] = row[1]
  end
end

local before = {}
for number, id in ipairs(ids) do
  local row = row_of(id)
  local state, refused = may_touch(owner, row[2]) and row[1], 0
  if state and RETRIED[id] then
    state = RETRIED[id]
  elseif may_retry(state) then
    local size = tonumber(row[6] or 1)
    refused = verdict(row[2] or '', row[3], size)
    if refused == 0 and row[6] then state = retry_gang(id, size) or state
    elseif refused == 0 then retry(id, row) end
  end
  before[number] = {state or '', refused, 86400000 - NOW % 86400000}
end
return answer(fence, before)
