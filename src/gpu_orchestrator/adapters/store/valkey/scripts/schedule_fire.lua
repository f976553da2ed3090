#!lua
-- Queue the tasks of schedules whose moment has come, and advance these schedules, in one step: who repeats this finds
-- another next moment and does nothing. Leader only.
-- Arguments: fence, firings {id, the moment that was next, the one after those that are due or 0, the last that is due,
--   tasks as in `submit`, their moments as text, unit as in `submit` but for its tasks, moments passed over}
-- Answers per firing {'fired' | 'advanced' (nothing was to be run) | 'overlap' | 'stopped' | 'moved on' | 'no room', how
--   many tasks were queued, the code of `submit` if there is no room}; nothing if the caller does not lead
local fence, firings = ARG[1], ARG[2]
if not leads(fence) then return answer(fence, {}) end
local RETRY_MS = 10000 -- when there was no room
local LIMITS = {[-2] = 'its owner has too many tasks waiting', [-3] = 'too many tasks of its priority wait',
  [-4] = 'its owner has used up the GPU time of the day'}
local WANTED = 5

local function why_over(key)
  if string.sub(key, 1, 9) == 'bootstrap' then return nil end -- from the settings
  local expires, revoked = unpack(redis.call('HMGET', P .. 'k:' .. key, 'expires', 'revoked'), 1, 2)
  if not revoked then return 'is no longer known' end
  if revoked ~= '0' then return 'was revoked' end
  return expires ~= '0' and tonumber(expires) <= NOW and 'has expired' or nil
end

local function tell_all(name, id, row, more)
  emit(name, row.owner, '{"schedule_id":' .. cjson.encode(id) .. ',"name":' .. cjson.encode(row.name) .. more .. '}')
end

local function stop(id, row, why)
  local reason = 'the key ' .. row.key .. ', with which it was added, ' .. why .. '; resume it with another key'
  redis.call('HSET', P .. 'sc:' .. id, 'state', 'stopped', 'reason', reason, 'next', '0', 'trouble', '')
  redis.call('ZREM', P .. 'due:schedules', id)
  tell_all('schedule_stopped', id, row, ',"reason":' .. cjson.encode(reason))
  return {'stopped', 0, 0}
end

local function passes_over(id, row, count, why)
  redis.call('HINCRBY', P .. 'sc:' .. id, 'passed_over', count)
  tell_all('schedule_skipped', id, row, ',"moments":' .. text(count) .. ',"reason":' .. cjson.encode(why))
end

local function still_runs(row)
  local state = row.last_task ~= '' and redis.call('HGET', P .. 't:' .. row.last_task, 'state')
  return state and not ENDS[state]
end

-- Return the tasks that go: with `skip` none beside an earlier one, with `queue` each after the one before.
local function chosen(row, tasks)
  local goes, before = {}, still_runs(row) and row.last_task or nil
  for _, task in ipairs(tasks) do
    task[12] = nil
    if row.overlap == 'queue' and before then task[12] = 'run ' .. before end
    if row.overlap ~= 'skip' or not before then goes[#goes + 1] = task end
    before = task[1]
  end
  return goes
end

local function judged(unit, tasks)
  local wanted, later = {0, 0, 0, 0}, 0
  for _, task in ipairs(tasks) do
    wanted[task[8] + 1] = wanted[task[8] + 1] + 1
    if task[12] then later = later + 1 end
  end
  unit[WANTED] = wanted
  return judge_unit(unit, later)
end

local function queue(id, row, task, moment)
  if redis.call('EXISTS', P .. 't:' .. task[1]) == 0 then
    local _, state = add_task(task)
    if state ~= 'scheduled' then tell_queued(task[1], task[2], 0, 0, NOW, '') end
    count('submitted')
  end
  tell_all('schedule_fired', id, row,
    ',"task_id":' .. cjson.encode(task[1]) .. ',"scheduled_for":' .. cjson.encode(moment))
end

local function fire(firing)
  local id, at, following, last, tasks, moments, unit, missed = unpack(firing, 1, 8)
  local key = P .. 'sc:' .. id
  local found = redis.call('HMGET', key, 'state', 'next', 'owner', 'name', 'key', 'overlap', 'last_task', 'delay')
  if found[1] ~= 'active' or found[2] ~= text(at) then return {'moved on', 0, 0} end
  local row = {owner = found[3], name = found[4], key = found[5], overlap = found[6], last_task = found[7] or ''}
  local over = why_over(row.key)
  if over then return stop(id, row, over) end
  local goes = chosen(row, tasks)
  local code = judged(unit, goes)
  if code < 0 then
    redis.call('HSET', key, 'trouble', LIMITS[code])
    redis.call('ZADD', P .. 'due:schedules', NOW + RETRY_MS, id)
    return {'no room', 0, code}
  end
  for number, task in ipairs(goes) do queue(id, row, task, moments[number]) end
  if #goes > 0 then redis.call('HSET', key, 'last_task', goes[#goes][1]) end
  redis.call('HINCRBY', key, 'fired', #goes)
  redis.call('HSET', key, 'next', text(following), 'last', text(last), 'trouble', '')
  if following > 0 then wait_for_moment(id, following, tonumber(found[8])) else redis.call('ZREM', P .. 'due:schedules', id) end
  if missed > 0 then passes_over(id, row, missed, 'they were missed') end
  if #goes < #tasks then passes_over(id, row, #tasks - #goes, 'task ' .. row.last_task .. ' had not ended') end
  return {#goes > 0 and 'fired' or #tasks > 0 and 'overlap' or 'advanced', #goes, 0}
end

local told = {}
for number, firing in ipairs(firings) do told[number] = fire(firing) end
return answer(fence, told)
