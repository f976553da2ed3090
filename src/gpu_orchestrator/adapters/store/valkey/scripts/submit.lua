#!lua
-- Queue new tasks; for a known idempotency key, answer with the task of that key. A leader that has placed some of the
-- tasks already passes their assignments, so that they are queued and assigned in one write.
-- Arguments: fence, remember_ms, known (1: the leader's dispatcher calls and knows these tasks),
--   tasks {id, spec, params, retries, idempotency key or '', correlation id, tenant, level of priority, not before,
--   expires (both ms; negative: this many ms from now; 0: none), workers that it may lose, `needs` or '', members of its
--   gang or 0; they come together, by rank, and the first has the key of all},
--   assignments of some of these tasks,
--   units {owner, most that may wait of it, most that may wait at each level, its GPU ms of a day, {tasks by level}}:
--   one request, accepted whole or not at all; a limit of 0 means unlimited; further parts of it have no limits,
--   per task the number of its unit, or 0
-- Answers {per task {id, created, 1 new | 0 known, then its state and worker | -1 the key belongs to a task with different content | for a
--   refused unit: -2 too many wait of this owner | -3 too many wait at this level | -4 its GPU time of the day is used
--   up, and created is ms until the next day | -5 the leader is of a version that knows no gangs}, per assignment {params, correlation id} or {reason for the refusal}}
local fence, remember_ms, tasks, assignments, units, unit_of = ARG[1], ARG[2], ARG[4], ARG[5], ARG[6], ARG[7]
-- Columns of a task, and of a unit.
local ID, SPEC, PARAMS, IDEMPOTENCY, CORRELATION, LEVEL, NOT_BEFORE, NEEDS, GANG = 1, 2, 3, 5, 6, 8, 9, 12, 13
local WANTED = 5
local led = leads(fence)
local known_to_leader = led and ARG[3] == 1

for _, task in ipairs(tasks) do
  if task[NEEDS] == '' then task[NEEDS] = nil end
end

-- By gang that is new, if the key of its first member is known: the id of that task. Its other members are those of that
-- task's gang; where there are none the key belongs to something else.
local first_of = {}
local function known_member(task)
  local gang, rank = string.match(task[ID], '^(.+)%-(%d+)$')
  if task[IDEMPOTENCY] ~= '' then
    local found = redis.call('GET', P .. 'idem:' .. task[IDEMPOTENCY])
    if found and redis.call('EXISTS', P .. 't:' .. found) == 1 then first_of[gang] = found end
    return found
  end
  local first = first_of[gang]
  local member = first and string.gsub(first, '%-%d+$', '-' .. rank)
  if not first or redis.call('EXISTS', P .. 't:' .. member) == 1 then return member end
  return first
end

local function has_older_leader()
  local fences = redis.call('HMGET', P .. 'leader', 'fence', 'gangs')
  return fences[1] ~= fences[2]
end

-- Tasks that are already known need no room. By unit: the tasks that are scheduled for later.
local rows, known, later_of = {}, {}, {}
for number, task in ipairs(tasks) do
  local found = task[GANG] > 0 and known_member(task) or
    task[IDEMPOTENCY] ~= '' and redis.call('GET', P .. 'idem:' .. task[IDEMPOTENCY])
  local created, spec, state, worker
  local needs
  if found then
    created, spec, state, worker, needs = unpack(
      redis.call('HMGET', P .. 't:' .. found, 'created', 'spec', 'state', 'worker', 'needs'), 1, 5)
  end
  local unit = unit_of[number] or 0
  if not created and unit > 0 and (task[NEEDS] or moment_of(task[NOT_BEFORE]) > NOW) then add(later_of, unit, 1) end
  if created then
    rows[number] = {id = found, created = created, state = state, worker = worker or '',
      same = spec == task[SPEC] and (needs or nil) == task[NEEDS] and same_params(P .. 't:' .. found, task[PARAMS])}
    if unit > 0 then add(units[unit][WANTED], task[LEVEL] + 1, -1) end
  end
end

local verdicts = {}
for number, unit in ipairs(units) do verdicts[number] = judge_unit(unit, later_of[number] or 0) end
for number, task in ipairs(tasks) do
  if task[GANG] > 0 and not rows[number] and has_older_leader() then verdicts[unit_of[number] or 0] = -5 end
end

-- By task: the number of its assignment. By assignment: its answer.
local goes, given = {}, {}
for number, each in ipairs(led and assignments or {}) do
  goes[each[ID]] = number
  given[number] = {'task moved on'}
end

-- Write a new task's row; assign it to its worker at once if the worker has not changed since the leader decided. Returns
-- when it may begin, and its state.
local function take(task)
  local id = task[ID]
  local number = goes[id]
  local each = number and assignments[number]
  local worker, epoch
  if each then worker, epoch = each[3], each[4] end
  local is_given = each and epoch_of(worker) == text(epoch)
  local begins, state = add_task(task, is_given and given_fields(each) or nil)
  if is_given then give(id, worker) end
  if each then given[number] = is_given and {task[PARAMS], task[CORRELATION]} or {'worker moved on'} end
  return begins, state
end

local taken, fresh = {}, 0
for number, task in ipairs(tasks) do
  local id, idem, row = task[ID], task[IDEMPOTENCY], rows[number]
  local said = row == nil and verdicts[unit_of[number] or 0] or 1
  if row == nil and idem ~= '' and known[idem] then
    row = known[idem]
    row.same = row.spec == task[SPEC] and row.params == task[PARAMS] and row.needs == task[NEEDS]
  end
  if said < 0 then
    taken[number] = {'', said == -4 and 86400000 - NOW % 86400000 or 0, said}
  elseif row then
    taken[number] = {row.id, tonumber(row.created), row.same and 0 or -1, row.state or 'queued', row.worker or ''}
  else
    local begins, state = take(task)
    if idem ~= '' then
      redis.call('SET', P .. 'idem:' .. idem, id, 'PX', remember_ms)
      known[idem] = {id = id, created = NOW, spec = task[SPEC], params = task[PARAMS], needs = task[NEEDS],
        state = state == 'scheduled' and state or 'queued'}
    end
    -- The leader's dispatcher leaves tasks that name a time or other tasks to the store, and gangs.
    if state ~= 'scheduled' and (begins > 0 or task[GANG] > 0 or not known_to_leader) then tell_queued(id, task[SPEC], 0, 0, NOW, '') end
    taken[number] = {id, NOW, 1, state == 'scheduled' and state or 'queued', ''}
    fresh = fresh + 1
  end
end
if fresh > 0 then count('submitted', fresh) end
return answer(fence, {taken, given})
