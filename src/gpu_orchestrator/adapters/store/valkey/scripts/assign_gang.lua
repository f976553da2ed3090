#!lua flags=allow-oom
-- Assign all members of a gang to workers, or none: only if every member and every worker is as it was when the leader
-- decided. Leader only.
-- Arguments: fence, gangs {assignments, one for each member}
-- Answers false if the caller does not lead, else per gang and assignment as `assign` does; {'gang moved on'} for those
--   that could have been assigned but for another member
local fence, gangs = ARG[1], ARG[2]
if not leads(fence) then return answer(fence, false) end

local MOST_BYTES = 8 * 1024 * 1024
local bytes = 0

local function why_not(each, size)
  local id, so_far, worker, epoch = unpack(each, 1, 4)
  local state, attempt, expires, gang = unpack(
    redis.call('HMGET', P .. 't:' .. id, 'state', 'attempt', 'expires', 'gang'), 1, 4)
  if state ~= 'queued' or attempt ~= text(so_far) or (expires and tonumber(expires) <= NOW) then return 'task moved on' end
  if epoch_of(worker) ~= text(epoch) then return 'worker moved on' end
  if gang ~= text(size) then return 'gang moved on' end
  return nil
end

local function assign(each)
  local id, worker = each[1], each[3]
  local key = P .. 't:' .. id
  local correlation, created, level, tenant, params = unpack(
    redis.call('HMGET', key, 'correlation', 'created', 'level', 'tenant', 'params'), 1, 5)
  redis.call('HSET', key, unpack(given_fields(each)))
  waits(level, -1)
  move(id, 'queued', 'assigned', created, tenant)
  give(id, worker)
  bytes = bytes + #params
  return {params, correlation}
end

local function judged(assignments)
  local refused, is_refused = {}, false
  for number, each in ipairs(assignments) do
    refused[number] = why_not(each, #assignments)
    is_refused = is_refused or refused[number] ~= nil
  end
  return is_refused, refused
end

local told = {}
for number, assignments in ipairs(gangs) do
  local given = {}
  local is_late = bytes >= MOST_BYTES
  local is_refused, refused = false, {}
  if not is_late then is_refused, refused = judged(assignments) end
  for at, each in ipairs(assignments) do
    if is_late then given[at] = {'later'}
    elseif is_refused then given[at] = {refused[at] or 'gang moved on'}
    else given[at] = assign(each) end
  end
  if not is_late and not is_refused then count('gangs_started') end
  told[number] = given
end
return answer(fence, told)
