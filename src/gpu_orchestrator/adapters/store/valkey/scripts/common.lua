-- Code shared by the scripts: each script gets the first paragraph, and those of the others that it needs. A script
-- takes KEYS[1], the prefix of all keys with their one hash tag, and ARGV[1], its arguments as one msgpack value; it
-- answers one msgpack value. Times are from the store's own clock, in ms.
--
--   t:<id>       hash    one task            w:<name>    hash   one worker          leader  hash  owner, fence, until
--   s:<state>    zset    ids by creation     leases      zset   worker -> expiry    news    list  for the leader
--   on:<worker>  set     active attempts     of:<worker> zset   its latest tasks    idem:*  string -> task id
--   stats        hash    counters            d:<worker>  hash   its counters        apis    zset  processes
--   res:<owner>:<digest>  string -> a completed task whose result answers for equal ones; expires
--   b:<worker>   hash    how tasks went there since the first that failed; expires. b: without a name is all workers
--   circuits     set     workers whose circuit is open or half open: their rows have `circuit`
--   epoch, fence numbers                      workers     set    names               levels  hash  waiting by priority
--   used:<day>   hash    owner -> GPU ms      rate:*      hash   slot -> requests
--   o:<owner>:<state>  zset  as s:<state>, of one owner            owners      set    owners with such lists
--   events       stream  what happened       watch       hash   generation of the stream, most events kept
--   h:<ring>     hash    buckets of history, by slot              callbacks   zset   ended tasks by due time
--   k:<id>       hash    one API key         keys        zset   ids by creation     keys:version  number
--   keys:used    hash    keys from settings -> last use           devices:worker  hash  UUID of a device -> worker
--   log:<id>     list    what a task printed; expires with it. An entry is where it ends in the log, in bytes; its
--                        attempt; the position after it in what that attempt printed; the text: '104 1 104 text'
--   logs         zset    ids by last write   logs:sizes  hash   id -> bytes, '' -> bytes of all logs
--   logs:of      hash    id -> owner         logs:of:<owner>  zset  as logs      logs:owners  zset  owner -> bytes
--                        A log that was dropped leaves the start of its last entry in its task's row, as `log`
--   log:<id>.values  list  what its newest attempt sent before its end; counted and dropped as the logs are, as <id>.values.
--                        An entry is the number after its last value; its attempt; the number of its first value; the values,
--                        one on each line: '2 1 0 "a"'. One that was dropped leaves the start of its last entry as `values`
--   reading:<id>  hash   reader of the values -> its attempt, the number of the next value, until when it holds the task back;
--                        '' -> when values were refused last
--   after:<id>   set     tasks that wait for it and were not told that it ended
--   pins:<id>    set     tasks that need its row: they name it as a dependency and have not ended
--   links        zset    tasks with dependencies or dependents that are new or have ended, until that was seen to -> since
--   sc:<id>      hash    one schedule        schedules   zset   ids by creation, schedules:of:<owner> those of one owner
--   due:schedules  zset  active schedules by when they fire
--   due:not-before, due:expires  zset  scheduled tasks by when they may begin, tasks by when they expire if they wait then
--   audit:changes, audit:traffic  streams    audit:number       of the last entry
--   ended        zset    '<id> <state> <owner>' of an ended task -> when its row expires
--   results      zset    where a result is that is not in its task's row -> when it may be deleted. An entry is
--                        '<file or s3> <bytes> <name>', and the name is '<id>.<attempt>.<letters>'
--                        Where files are is noted there, too, but not counted
--   file:<id>    hash    a file: its owner, name, bytes, digest, where it is, when it was made. Expires
--   files:<owner>  zset  '<bytes> <id>' of the owner's files -> when they expire
--   results:bytes  number  of all these results            results:folder  string  name of their folder
--   forgetting   string  why ended tasks are forgotten before their time; expires when that is over
--   m:<name>     hash    one model of the registry                 models      zset    names      models:version  number
--   A member of a gang has `gang` in its row, how many members there are; its id is the gang's with '-' and its rank behind it
--   schema       the version of all this data, see `migrations.py`
--   durable      what DURABILITY=strict writes last, see `durability.py`
--   callback-secret  the sealed secret of all owners without their own, callback-secret:<owner>
local P = KEYS[1]
local ARG = cmsgpack.unpack(ARGV[1])
local clock = redis.call('TIME')
local NOW = clock[1] * 1000 + math.floor(clock[2] / 1000)
local NEWS = {}
local LEVELS, USED, COUNTS, HAS_LINKS = {}, {}, {}, false
local DEAD_KEPT = 4 -- dead tasks stay this many times as long as other ended tasks
local NEWS_MAX = 100000

local function text(number) return string.format('%d', number) end

-- Add to a counter in memory; `answer` writes all counters once.
local function add(counts, name, by) counts[name] = (counts[name] or 0) + by end

local function count(name, by) add(COUNTS, name, by or 1) end

local function day() return text(math.floor(NOW / 86400000)) end

-- Add to the number of tasks that wait at this priority level. Rows of older versions have no level; a new leader
-- recounts.
local function waits(level, by)
  if level then add(LEVELS, level, by) end
end

local function write(key, counts)
  for name, by in pairs(counts) do
    if by ~= 0 then redis.call('HINCRBY', P .. key, name, by) end
  end
end

local function write_counts()
  write('stats', COUNTS)
  write('levels', LEVELS)
  if next(USED) then
    write('used:' .. day(), USED)
    redis.call('PEXPIRE', P .. 'used:' .. day(), 2 * 86400000)
  end
end

-- Queue news for the leader: it goes into the answer, and into the list `news` if the caller is not the leader.
local function tell(item) NEWS[#NEWS + 1] = item end

local function answer(fence, value)
  write_counts()
  if #NEWS > 0 and (fence == 0 or redis.call('HGET', P .. 'leader', 'fence') ~= text(fence)) then
    for _, item in ipairs(NEWS) do redis.call('RPUSH', P .. 'news', cmsgpack.pack(item)) end
    if redis.call('LLEN', P .. 'news') > NEWS_MAX then
      redis.call('DEL', P .. 'news')
      redis.call('RPUSH', P .. 'news', cmsgpack.pack({'Resync'}))
    end
    redis.call('PUBLISH', P .. 'wake', '')
  end
  return cmsgpack.pack({NEWS, value})
end

-- Publish the ids of ended tasks, for callers that wait for them at another process.
local function announce(finals)
  if #finals > 0 and redis.call('ZCARD', P .. 'apis') > 1 then
    redis.call('PUBLISH', P .. 'ended', cmsgpack.pack(finals))
  end
end

-- Write an event to the stream, in the same step as the change that it reports. Ids increase by one inside a
-- generation, so a reader notices a missing one; a new or restored store starts a new generation. `owner` owns the task
-- that the event concerns, empty if it concerns everybody.
local STREAM = {}
local function emit(name, owner, data, at)
  if not STREAM.generation then
    local known = redis.call('HMGET', P .. 'watch', 'generation', 'most')
    STREAM.generation, STREAM.most = known[1], known[2] or '50000'
    if not known[1] then
      STREAM.generation = text(NOW)
      redis.call('HSET', P .. 'watch', 'generation', STREAM.generation)
    end
  end
  redis.call('XADD', P .. 'events', 'MAXLEN', '~', STREAM.most, STREAM.generation .. '-*', 'e', name, 'o', owner or '',
    't', text(at or NOW), 'd', data)
end

-- Write an event about a task; `more` is JSON to append, starting with a comma.
local function emit_task(name, id, owner, worker, attempt, more, at)
  emit(name, owner, '{"task_id":' .. cjson.encode(id) .. ',"worker_id":' .. cjson.encode(worker or '') ..
    ',"attempt":' .. (attempt or '0') .. (more or '') .. '}', at)
end

-- Write the event for the start of an attempt, with the devices that it got.
local function emit_start(id, owner, worker, attempt, place, at)
  local devices = '[]'
  if place and string.find(place, '"devices"', 1, true) then
    local given = cjson.decode(place).devices
    for _, each in ipairs(given) do each.model = each.model or '' end
    if #given > 0 then devices = cjson.encode(given) end
  end
  emit_task('task_started', id, owner, worker, attempt, ',"devices":' .. devices, at)
end

local function emit_worker(name, worker, status, why)
  emit(name, '', '{"worker_id":' .. cjson.encode(worker) .. ',"status":' .. cjson.encode(status) ..
    ',"reason":' .. cjson.encode(why or '') .. '}')
end

-- Note which models a worker has loaded, {number of the load, model, devices, seconds that it took, MiB on each device},
-- and write an event for each one that is new or gone.
local function set_models(worker, found)
  local key = P .. 'w:' .. worker
  local written = redis.call('HGET', key, 'loaded')
  if #found == 0 and (not written or written == '') then return end
  local function tell_model(name, each)
    local devices = #each[3] > 0 and cjson.encode(each[3]) or '[]'
    emit(name, '', '{"worker_id":' .. cjson.encode(worker) .. ',"model_name":' .. cjson.encode(each[2]) ..
      ',"devices":' .. devices .. ',"load_seconds":' .. string.format('%.3f', each[4]) ..
      ',"memory_bytes":' .. text(each[5] * 1048576 * math.max(#each[3], 1)) .. '}')
  end
  local gone, now = {}, {}
  for _, each in ipairs((written and written ~= '') and cjson.decode(written) or {}) do gone[each[1]] = each end
  for at, each in ipairs(found) do
    if not gone[each[1]] then tell_model('model_loaded', each) end
    gone[each[1]] = nil
    now[at] = '[' .. text(each[1]) .. ',' .. cjson.encode(each[2]) .. ',' ..
      (#each[3] > 0 and cjson.encode(each[3]) or '[]') .. ',' .. string.format('%.3f', each[4]) .. ',' .. text(each[5]) .. ']'
  end
  for _, each in pairs(gone) do tell_model('model_unloaded', each) end
  redis.call('HSET', key, 'loaded', #now > 0 and '[' .. table.concat(now, ',') .. ']' or '')
end

-- Update the active alerts of a worker from {device, kind, 1 if it raises an alert, value, message}. Write one event
-- when an alert is raised and one when it clears. An entry that does not raise an alert keeps an active one.
local function set_alerts(worker, found)
  local key = P .. 'w:' .. worker
  local written = redis.call('HGET', key, 'alerts')
  if #found == 0 and (not written or written == '') then return end
  local stood, stands = {}, {}
  for _, alert in ipairs((written and written ~= '') and cjson.decode(written) or {}) do
    stood[alert.device .. alert.kind] = alert
  end
  local function tell_alert(alert, state)
    emit('gpu_alert', '', cjson.encode({worker_id = worker, device = alert.device, kind = alert.kind, state = state,
      value = alert.value, message = alert.message}))
  end
  for _, each in ipairs(found) do
    local device, kind, raises, value, message = unpack(each, 1, 5)
    local name = device .. kind
    local before = stood[name]
    if before or raises == 1 then
      local alert = {device = device, kind = kind, value = value, message = message, since = NOW}
      if before then alert.since = before.since else tell_alert(alert, 'raised') end
      stands[#stands + 1] = alert
      stood[name] = nil
    end
  end
  for _, alert in pairs(stood) do tell_alert(alert, 'cleared') end
  redis.call('HSET', key, 'alerts', #stands > 0 and cjson.encode(stands) or '')
end

-- Read an entry of a log. Of a log without entries: what is left of one that was dropped, or nothing.
local function last_log_entry(id, dropped)
  return redis.call('LINDEX', P .. 'log:' .. id, -1) or dropped or '0 0 0 \n'
end

local function log_entry(entry)
  local at, attempt, position, from = string.match(entry, '^(%d+) (%d+) (%d+) ()')
  return {at = tonumber(at), attempt = tonumber(attempt), position = tonumber(position),
    said = string.sub(entry, from)}
end

-- What is behind the id of a task in the name of its values, among the names of logs.
local VALUES = '.values'

-- Return, by bisection, the place of the first entry of a log that ends after this.
local function first_log_entry(key, after)
  local low, high = 0, after == 0 and 0 or redis.call('LLEN', key) - 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if log_entry(redis.call('LINDEX', key, middle)).at > after then high = middle else low = middle + 1 end
  end
  return low
end

-- About what an entry of a log costs beside its text, and what a log costs beside its entries.
local LOG_ENTRY, LOG_BASE = 64, 320

-- Count what is written to a log, and what is cut off; `note_log` then counts it for its owner: all of the log, if its
-- owner was not noted before.
local GROWN = {}
local function grow_log(id, by)
  redis.call('HINCRBY', P .. 'logs:sizes', '', by)
  redis.call('HINCRBY', P .. 'logs:sizes', id, by)
  add(GROWN, id, by)
end

local function note_log(id, owner)
  local is_noted = redis.call('HSETNX', P .. 'logs:of', id, owner) == 0
  redis.call('ZINCRBY', P .. 'logs:owners', is_noted and GROWN[id] or redis.call('HGET', P .. 'logs:sizes', id), owner)
  redis.call('ZADD', P .. 'logs:of:' .. owner, NOW, id)
  redis.call('ZADD', P .. 'logs', NOW, id)
end

local function forget_log(id)
  local size, owner = tonumber(redis.call('HGET', P .. 'logs:sizes', id) or 0), redis.call('HGET', P .. 'logs:of', id)
  redis.call('DEL', P .. 'log:' .. id)
  redis.call('ZREM', P .. 'logs', id)
  redis.call('HDEL', P .. 'logs:sizes', id)
  if owner then
    redis.call('HDEL', P .. 'logs:of', id)
    redis.call('ZREM', P .. 'logs:of:' .. owner, id)
    local left = tonumber(redis.call('ZINCRBY', P .. 'logs:owners', -size, owner))
    if left <= 0 then redis.call('ZREM', P .. 'logs:owners', owner) end
  end
  return redis.call('HINCRBY', P .. 'logs:sizes', '', -size)
end

-- Return the log to drop first: of the owner whose logs are largest, the one that was written to least recently. Logs
-- of a version that did not note owners go before them.
local function log_to_drop()
  local oldest = redis.call('ZRANGE', P .. 'logs', 0, 0)[1]
  if not oldest or redis.call('HEXISTS', P .. 'logs:of', oldest) == 0 then return oldest end
  local owner = redis.call('ZREVRANGE', P .. 'logs:owners', 0, 0)[1]
  while owner do
    local found = redis.call('ZRANGE', P .. 'logs:of:' .. owner, 0, 0)[1]
    if found then return found end
    redis.call('ZREM', P .. 'logs:owners', owner)
    owner = redis.call('ZREVRANGE', P .. 'logs:owners', 0, 0)[1]
  end
  return oldest
end

-- Drop logs while all together are larger than this; at most a thousand per call, so that other clients do not wait
-- long.
local function drop_logs(most)
  local size = tonumber(redis.call('HGET', P .. 'logs:sizes', '') or 0)
  for _ = 1, 1000 do
    local id = size > most and log_to_drop()
    if not id then return end
    local ends = string.match(last_log_entry(id, ''), '^%d+ %d+ %d+ ')
    local of_values = string.sub(id, -#VALUES) == VALUES
    local row, left = P .. 't:' .. (of_values and string.sub(id, 1, -1 - #VALUES) or id), of_values and 'values' or 'log'
    if ends and redis.call('EXISTS', row) == 1 then redis.call('HSET', row, left, ends .. '\n') end
    size = forget_log(id)
  end
end

local function leads(fence)
  return fence ~= 0 and redis.call('HGET', P .. 'leader', 'fence') == text(fence)
end

-- Add a task to the list of all tasks in this state, and to that of its owner.
local function list(id, state, created, owner)
  redis.call('ZADD', P .. 's:' .. state, created, id)
  if owner and owner ~= '' then redis.call('ZADD', P .. 'o:' .. owner .. ':' .. state, created, id) end
end

-- List a task that was in no list before. `OWNERS`: those that this call has noted already.
local OWNERS = {}
local function enlist(id, state, created, owner)
  list(id, state, created, owner)
  if owner and owner ~= '' and not OWNERS[owner] then
    OWNERS[owner] = true
    redis.call('SADD', P .. 'owners', owner)
  end
end

local function move(id, from, to, created, owner)
  redis.call('ZREM', P .. 's:' .. from, id)
  if owner and owner ~= '' then redis.call('ZREM', P .. 'o:' .. owner .. ':' .. from, id) end
  list(id, to, created, owner)
end

-- The entry of an ended task in `ended`: all that `trim` needs to know after the row has expired.
local function ended_entry(id, state, owner) return id .. ' ' .. state .. ' ' .. (owner or '') end

-- Take a task off all lists of its state.
local function unlist(id, state, owner)
  redis.call('ZREM', P .. 's:' .. state, id)
  if owner and owner ~= '' then redis.call('ZREM', P .. 'o:' .. owner .. ':' .. state, id) end
end

-- Note a result that is not in its task's row, and when it may be deleted.
local function add_result(at, until_ms)
  redis.call('ZADD', P .. 'results', until_ms, at)
  redis.call('INCRBY', P .. 'results:bytes', string.match(at, '^%S+ (%d+) '))
end

-- Whether the caller may see and change a task: as its owner, or for all owners ('').
local function may_touch(owner, tenant) return owner == '' or owner == tenant end

local function tell_queued(id, spec, attempt, after, created, deaths)
  tell({'Queued', id, spec, attempt, after, created, deaths})
end

-- Read a worker's row, and with it: when its lease ends, how many attempts it holds, the time, its counters. Empty for
-- an unknown worker.
local function worker_row(name)
  local row = redis.call('HGETALL', P .. 'w:' .. name)
  if #row == 0 then return row end
  local more = {'lease', redis.call('ZSCORE', P .. 'leases', name) or '0',
    'active', text(redis.call('SCARD', P .. 'on:' .. name)), 'now', text(NOW)}
  for _, item in ipairs(more) do row[#row + 1] = item end
  for _, item in ipairs(redis.call('HGETALL', P .. 'd:' .. name)) do row[#row + 1] = item end
  return row
end

-- Queue news with a worker's current row and its counts of done and failed tasks; empty if the worker was removed.
-- `changes` in the row counts these news: readers that keep a copy read only rows whose count differs.
local function tell_worker(name)
  local key = P .. 'w:' .. name
  if redis.call('EXISTS', key) == 1 then redis.call('HINCRBY', key, 'changes', 1) end
  local row = redis.call('HGETALL', key)
  local went = redis.call('HMGET', P .. 'd:' .. name, 'done', 'failed')
  if #row > 0 then
    for number, field in ipairs({'done', 'failed'}) do
      row[#row + 1] = field
      row[#row + 1] = went[number] or '0'
    end
  end
  tell({'Worker', name, row})
end

-- Count from nothing how tasks go on a worker, and forget its part of what went wrong on all.
local function forget_outcomes(name)
  local key, all = P .. 'b:' .. name, P .. 'b:'
  for number, count in ipairs(redis.call('HMGET', key, 'ok', 'bad')) do
    if count and redis.call('EXISTS', all) == 1 then
      redis.call('HINCRBY', all, number == 1 and 'ok' or 'bad', -tonumber(count))
    end
  end
  redis.call('DEL', key)
end

-- A worker's circuit is closed, `open` (it gets no tasks until `circuit_until`) or `half` (it gets one at a time).
local function open_circuit(name, why, pause_ms, longest_ms)
  local key = P .. 'w:' .. name
  local times = tonumber(redis.call('HGET', key, 'circuit_times') or 0)
  local until_ms = NOW + math.min(pause_ms * 2 ^ math.min(times, 20), longest_ms)
  redis.call('HSET', key, 'circuit', 'open', 'circuit_until', text(until_ms), 'circuit_times', text(times + 1),
    'circuit_why', why)
  redis.call('SADD', P .. 'circuits', name)
  forget_outcomes(name)
  emit_worker('worker_status_changed', name, 'circuit_open', why)
  tell_worker(name)
end

-- Close a worker's circuit, if it is not. The caller tells of the worker.
local function close_circuit(name)
  forget_outcomes(name)
  if redis.call('SREM', P .. 'circuits', name) == 0 then return false end
  redis.call('HDEL', P .. 'w:' .. name, 'circuit', 'circuit_until', 'circuit_times', 'circuit_why')
  return true
end

-- Return a function that tells whether a spec has this task type ('' for any) and these labels ({key, value}, or {key}
-- for any value). It searches the text first, because decoding costs ten times more: for plain words, which JSON writes
-- in one way.
local function matcher(task_type, labels)
  local needles = {}
  local function look_for(word, behind)
    if word and string.match(word, '^[%w_.-]+$') then needles[#needles + 1] = '"' .. word .. '"' .. behind end
  end
  if task_type ~= '' then look_for(task_type, '') end
  for _, label in ipairs(labels) do
    look_for(label[1], ':')
    look_for(label[2], '')
  end
  return function(spec)
    if task_type == '' and #labels == 0 then return true end
    for _, needle in ipairs(needles) do
      if not spec or not string.find(spec, needle, 1, true) then return false end
    end
    local read = spec and cjson.decode(spec) or {}
    if task_type ~= '' and read.task_type ~= task_type then return false end
    for _, label in ipairs(labels) do
      local value = read.labels and read.labels[label[1]]
      if value == nil or (label[2] and value ~= label[2]) then return false end
    end
    return true
  end
end

-- Let go of the devices that a worker had when it registered last.
local function release_devices(name)
  local known = redis.call('HGET', P .. 'w:' .. name, 'uuids')
  for _, uuid in ipairs((known and known ~= '') and cjson.decode(known) or {}) do
    if redis.call('HGET', P .. 'devices:worker', uuid) == name then redis.call('HDEL', P .. 'devices:worker', uuid) end
  end
end

local function active(state) return state == 'assigned' or state == 'running' end

-- The first columns of a task's row, as read by scripts that check which worker holds the attempt.
local STATE, ATTEMPT, WORKER, EPOCH = 1, 2, 3, 4

-- Only the worker that holds the attempt may report on it.
local function holds(task, attempt, worker, epoch)
  return active(task[STATE]) and task[ATTEMPT] == text(attempt) and task[WORKER] == worker
    and task[EPOCH] == text(epoch)
end

-- Release the devices of an ended attempt. Its owner is charged for GPU time since the assignment.
local function release(id, worker, attempt, owner, milli, assigned)
  redis.call('SREM', P .. 'on:' .. worker, id)
  local ms = math.floor((NOW - tonumber(assigned or NOW)) * tonumber(milli or 0) / 1000)
  if owner and ms > 0 then add(USED, owner, ms) end
  tell({'Ended', id, worker, attempt, ms})
end

-- The columns of the row of an ended task that are shown: all but its parameters, which may be large.
local SHOWN = {'spec', 'state', 'attempt', 'worker', 'created', 'started', 'finished', 'progress', 'result', 'error',
  'reason', 'deaths', 'correlation', 'callback', 'place', 'tenant', 'result_at', 'not_before', 'expires', 'needs', 'open'}
local function shown(key)
  local row, size = {}, 0
  for at, value in ipairs(redis.call('HMGET', key, unpack(SHOWN))) do
    if value then
      row[#row + 1] = SHOWN[at]
      row[#row + 1] = value
      size = size + #value
    end
  end
  return row, size
end

-- Parameters longer than this are compared by their digest and dropped once the task has completed.
local LARGE_PARAMS = 4096

-- Whether a task that is stored has these parameters. They are read only if they are as long, because they may be large.
local function same_params(key, params)
  local size = redis.call('HSTRLEN', key, 'params')
  if size == 0 then
    local digest = redis.call('HGET', key, 'digest')
    return not digest or digest == redis.sha1hex(params)
  end
  return size == #params and redis.call('HGET', key, 'params') == params
end

-- How long an ended task is kept: as it asked itself, or as all are; dead letters longer.
local function kept_for(to, spec, keep_ms)
  if string.find(spec, '"result_ttl_s"', 1, true) then
    local own_s = cjson.decode(spec).result_ttl_s
    if type(own_s) == 'number' and own_s > 0 then return math.ceil(own_s * 1000) end
  end
  return to == 'dead' and keep_ms * DEAD_KEPT or keep_ms
end

-- Return where a task's callback goes, or nil. The search spares most tasks the decoding, and cannot decide: labels have
-- any text.
local function callback_of(spec)
  local url = string.find(spec, '"callback_url"', 1, true) and cjson.decode(spec).callback_url
  return type(url) == 'string' and url ~= '' and url or nil
end

-- Events are many, so they carry only the beginning of a long error.
local LONGEST_ERROR = 1000
local function short_error(failure)
  if #failure <= 2 * LONGEST_ERROR then return failure end
  local read = cjson.decode(failure)
  if type(read.message) == 'string' and #read.message > LONGEST_ERROR then
    local cut = LONGEST_ERROR
    while cut > 0 and string.byte(read.message, cut + 1) >= 128 and string.byte(read.message, cut + 1) < 192 do
      cut = cut - 1
    end
    read.message = string.sub(read.message, 1, cut) .. ' [cut; the task has more]'
  end
  return cjson.encode(read)
end

local ENDS = {completed = 'task_completed', failed = 'task_failed', dead = 'task_failed', cancelled = 'task_cancelled'}

-- Write the event for the end of a task, with its duration or its error.
local function emit_end(id, to, tenant, worker, attempt, started, failure)
  local more = ',"status":"' .. to .. '"'
  if to == 'completed' then
    more = more .. ',"duration_seconds":' .. string.format('%.3f', (NOW - (tonumber(started) or NOW)) / 1000)
  elseif failure and failure ~= '' and to ~= 'cancelled' then
    more = more .. ',"error":' .. short_error(failure)
  end
  emit_task(ENDS[to], id, tenant, worker, attempt, more)
end

-- A task with dependencies has `needs`: what to do when one of them fails, then their ids, as in 'cancel id id'. `open`
-- counts those that it has not heard of. Its row and theirs have `linked`. What follows from that, when it is new and when
-- one of them ends, is done by `links`, which the leader calls at once, a part at a time: they may be thousands.
local function see_to_links(id)
  if not HAS_LINKS then tell({'Linked'}) end
  HAS_LINKS = true
  redis.call('ZADD', P .. 'links', NOW, id)
end

-- Keep the row of a dependency as long as this task needs it.
local function pin(other, id)
  local key = P .. 't:' .. other
  redis.call('SADD', P .. 'pins:' .. other, id)
  if redis.call('EXISTS', key) == 1 then
    redis.call('HSET', key, 'linked', '1')
    redis.call('PERSIST', key)
    redis.call('PERSIST', P .. 'log:' .. other)
    redis.call('PERSIST', P .. 'log:' .. other .. VALUES)
  end
end

-- Let the row of an ended task expire, with its log and its values.
local function let_expire(id, state, tenant, kept_ms)
  redis.call('PEXPIRE', P .. 't:' .. id, kept_ms)
  redis.call('PEXPIRE', P .. 'log:' .. id, kept_ms)
  redis.call('PEXPIRE', P .. 'log:' .. id .. VALUES, kept_ms)
  redis.call('ZADD', P .. 'ended', NOW + kept_ms, ended_entry(id, state, tenant))
end

-- `finish`, `requeue` and `died` return the task's new state, and `finish` how many ms the task is kept. `known` has the
-- columns of the row that `finish` needs, if the caller has read them.
local function finish(id, from, to, fields, keep_ms, known)
  local key = P .. 't:' .. id
  redis.call('HSET', key, 'state', to, 'finished', text(NOW), 'cancel', '0', unpack(fields))
  local created, tenant, worker, attempt, started, failure, level, spec, linked = unpack(known or redis.call('HMGET', key,
    'created', 'tenant', 'worker', 'attempt', 'started', 'error', 'level', 'spec', 'linked'), 1, 9)
  local kept_ms = kept_for(to, spec, keep_ms)
  if linked then
    see_to_links(id)
  else
    let_expire(id, to, tenant, kept_ms)
  end
  if from == 'queued' then waits(level, -1) end
  if from == 'scheduled' then redis.call('ZREM', P .. 'due:not-before', id) end
  if string.find(spec, '"expires"', 1, true) then redis.call('ZREM', P .. 'due:expires', id) end
  if callback_of(spec) then redis.call('ZADD', P .. 'callbacks', NOW, id) end
  move(id, from, to, created, tenant)
  count(to)
  emit_end(id, to, tenant, worker, attempt, started, failure)
  return to, kept_ms
end

-- Put a task back into the queue. It keeps its attempt and creation time, so it goes before tasks submitted later. The
-- leader does not learn of one that has expired meanwhile: `due` ends it.
local function requeue(id, from, delay_ms, fields)
  local key = P .. 't:' .. id
  redis.call('HSET', key, unpack(fields))
  local spec, attempt, created, deaths, tenant, worker, level, expires = unpack(
    redis.call('HMGET', key, 'spec', 'attempt', 'created', 'deaths', 'tenant', 'worker', 'level', 'expires'), 1, 8)
  local after = delay_ms > 0 and NOW + delay_ms or 0
  redis.call('HSET', key, 'state', 'queued', 'after', text(after), 'worker', '')
  move(id, from, 'queued', created, tenant)
  waits(level, 1)
  count('requeued')
  emit_task('task_requeued', id, tenant, worker, attempt,
    ',"reason":' .. cjson.encode(redis.call('HGET', key, 'reason') or '') .. ',"delay_seconds":' .. delay_ms / 1000)
  if expires then redis.call('ZADD', P .. 'due:expires', expires, id) end
  if not expires or tonumber(expires) > NOW then
    tell_queued(id, spec, tonumber(attempt), after, tonumber(created), deaths or '')
  end
  return 'queued'
end

local function error_json(kind, message, retryable)
  return cjson.encode({type = kind, message = message, retryable = retryable})
end

-- Members of a gang begin together, in `assign_gang`, and end together. One that is done lets go of its devices and keeps
-- its result as `kept`, with the epoch DONE, until all are. If one ends in another way, the others are stopped: `stops` says
-- what a member that still runs becomes when its attempt has ended, `queued` or a final state. GANG_ENDED: the other
-- members that this call has ended.
local DONE = 'done'
local GANG_ENDED = {}
local function gang_of(id) return string.match(id, '^(.+)%-%d+$') end
local function member_id(gang, rank) return gang .. '-' .. text(rank) end

-- Whether all members are so. Those next to this one are asked first: mostly the last ones to be so are neighbours.
local function all_members(id, size, is_so)
  local gang, own = gang_of(id), tonumber(string.match(id, '(%d+)$'))
  for step = 1, size - 1 do
    local away = math.floor((step + 1) / 2) * (step % 2 == 1 and 1 or -1)
    if not is_so(P .. 't:' .. member_id(gang, (own + away) % size)) then return false end
  end
  return true
end

-- Have the server of a worker read what the store has for it: an empty frame for it, see `workers/sessions.py`.
local WOKEN = {}
local function wake_worker(worker)
  if WOKEN[worker] then return end
  WOKEN[worker] = true
  local api = redis.call('HGET', P .. 'w:' .. worker, 'api')
  if api and api ~= '' then
    redis.call('PUBLISH', P .. 'api:' .. api, '\147' .. cmsgpack.pack(worker) .. '\196\0\0')
  end
end

-- Drop the result of a member whose gang did not get to its end.
local function drop_kept(key)
  local at = redis.call('HGET', key, 'kept_at')
  if at then redis.call('ZADD', P .. 'results', 0, at) end -- it is deleted next
  redis.call('HDEL', key, 'stops', 'kept', 'kept_at')
end

-- Let a member wait again; the leader hears of it when all do, by `queue_gang`.
local function member_waits(id, from)
  local key = P .. 't:' .. id
  local created, tenant, worker, attempt, level, reason, expires, after = unpack(redis.call('HMGET', key, 'created',
    'tenant', 'worker', 'attempt', 'level', 'reason', 'expires', 'after'), 1, 8)
  drop_kept(key)
  redis.call('HSET', key, 'state', 'queued', 'worker', '', 'epoch', '0', 'cancel', '0')
  move(id, from, 'queued', created, tenant)
  waits(level, 1)
  count('requeued')
  emit_task('task_requeued', id, tenant, worker, attempt, ',"reason":' .. cjson.encode(reason or '') ..
    ',"delay_seconds":' .. math.max(tonumber(after or 0) - NOW, 0) / 1000)
  if expires then redis.call('ZADD', P .. 'due:expires', expires, id) end
end

-- Tell the leader of the members of a gang, if all wait.
local function queue_gang(id, size)
  if not all_members(id, size, function(key) return redis.call('HGET', key, 'state') == 'queued' end) then return end
  local gang = gang_of(id)
  for rank = 0, size - 1 do
    local member = member_id(gang, rank)
    local spec, attempt, after, created, deaths = unpack(
      redis.call('HMGET', P .. 't:' .. member, 'spec', 'attempt', 'after', 'created', 'deaths'), 1, 5)
    tell_queued(member, spec, tonumber(attempt), tonumber(after or 0), tonumber(created), deaths or '')
  end
end

-- Stop the other members of a gang, which become `to`: at once if they wait or are done, else when their attempts have
-- ended. `fields` go into their rows. With the id of a gang all its members are stopped.
local function stop_others(id, size, to, keep_ms, fields)
  local gang = gang_of(id) or id
  for rank = 0, tonumber(size) - 1 do
    local member = member_id(gang, rank)
    local key = P .. 't:' .. member
    local state, epoch, stops, worker = unpack(redis.call('HMGET', key, 'state', 'epoch', 'stops', 'worker'), 1, 4)
    local goes_on = member ~= id and state and not ENDS[state] and (not stops or (stops == 'queued' and to ~= 'queued'))
    if goes_on and active(state) and epoch ~= DONE then
      redis.call('HSET', key, 'stops', to, 'cancel', '1', unpack(fields))
      wake_worker(worker)
    elseif goes_on and to == 'queued' then
      redis.call('HSET', key, unpack(fields))
      if active(state) then member_waits(member, state) end
    elseif goes_on then
      drop_kept(key)
      finish(member, state, to, fields, keep_ms)
      GANG_ENDED[#GANG_ENDED + 1] = member
      tell({'Gone', member})
    end
  end
end

-- End all members of a gang because this one has ended, without a result.
local function end_gang(id, size, to, keep_ms)
  local reason, failure = unpack(redis.call('HMGET', P .. 't:' .. id, 'reason', 'error'), 1, 2)
  local why = 'member ' .. id .. ' of its gang has ended: ' .. (reason or '')
  local said = failure and failure ~= '' and cjson.decode(short_error(failure))
  if said and type(said.message) == 'string' then why = why .. ' (' .. said.message .. ')' end
  if to == 'cancelled' then
    stop_others(id, size, to, keep_ms, {'reason', why, 'error', ''})
  else
    stop_others(id, size, to, keep_ms, {'reason', why, 'error', error_json('GangFailed', why, false)})
  end
  return to
end

-- Let a gang begin again because an attempt of this member did not count or is to be repeated; `tries` are those so far of
-- all its members, nil if they have no more than before.
local function gang_again(id, from, size, delay_ms, tries, keep_ms, fields)
  local key, after = P .. 't:' .. id, text(delay_ms > 0 and NOW + delay_ms or 0)
  redis.call('HSET', key, 'after', after, unpack(fields))
  member_waits(id, from)
  local why = 'member ' .. id .. ' stopped: ' .. (redis.call('HGET', key, 'reason') or '') .. '; the gang begins again'
  local others = {'after', after, 'reason', why}
  if tries then others[5], others[6] = 'tries', text(tries) end
  stop_others(id, size, 'queued', keep_ms, others)
  count('gangs_restarted')
  queue_gang(id, tonumber(size))
  return 'queued'
end

-- The attempt of a member that was being stopped has ended, however it did.
local function member_stopped(id, state, size, to, keep_ms)
  if to ~= 'queued' then
    redis.call('HDEL', P .. 't:' .. id, 'stops')
    return finish(id, state, to, {}, keep_ms)
  end
  member_waits(id, state)
  queue_gang(id, tonumber(size))
  return 'queued'
end

-- Keep the result of a member until all have one; then all are completed.
local function member_done(id, from, size, worker_fields, keep_ms)
  local key = P .. 't:' .. id
  if from == 'assigned' then
    local created, tenant = unpack(redis.call('HMGET', key, 'created', 'tenant'), 1, 2)
    move(id, from, 'running', created, tenant)
  end
  redis.call('HSET', key, 'state', 'running', 'epoch', DONE, 'error', '',
    'reason', 'it is done, and ends when all members of its gang are', unpack(worker_fields))
  if not all_members(id, tonumber(size), function(other) return redis.call('HGET', other, 'epoch') == DONE end) then
    return 'running'
  end
  for rank = 0, tonumber(size) - 1 do
    local member = member_id(gang_of(id), rank)
    local other = P .. 't:' .. member
    local result, at = unpack(redis.call('HMGET', other, 'kept', 'kept_at'), 1, 2)
    redis.call('HDEL', other, 'kept', 'kept_at')
    local _, kept_ms = finish(member, 'running', 'completed', {'result', result, 'reason', '', 'epoch', '0'}, keep_ms)
    if at then
      redis.call('HSET', other, 'result_at', at)
      redis.call('ZADD', P .. 'results', NOW + kept_ms, at)
    end
    if redis.call('HSTRLEN', other, 'params') > LARGE_PARAMS then redis.call('HDEL', other, 'params') end
    if member ~= id then GANG_ENDED[#GANG_ENDED + 1] = member end
  end
  return 'completed'
end

-- End an attempt because its runner (kind 'runner') or its worker (kind 'worker') died. Only a task that was running is
-- blamed. After the death of as many different workers as it may lose, or without retries left, it is a dead letter with
-- the evidence.
local LOST_WORKERS = 2 -- unless the row has another number
local function died(id, worker, kind, evidence, delay_ms, keep_ms)
  local key = P .. 't:' .. id
  local state, attempt, tries, retries, earlier, cancel, tenant, milli, assigned, lose_most, gang, stops = unpack(
    redis.call('HMGET', key, 'state', 'attempt', 'tries', 'retries', 'deaths', 'cancel', 'tenant', 'milli', 'assigned',
      'lost_workers', 'gang', 'stops'), 1, 12)
  attempt, tries = tonumber(attempt), tonumber(tries)
  release(id, worker, attempt, tenant, milli, assigned)
  if stops then return member_stopped(id, state, gang, stops, keep_ms) end
  if cancel == '1' then return finish(id, state, 'cancelled', {'reason', 'cancelled'}, keep_ms) end
  if state == 'assigned' and gang then return gang_again(id, state, gang, 0, nil, keep_ms, {'reason', evidence}) end
  if state == 'assigned' then return requeue(id, state, 0, {'reason', evidence}) end
  local deaths = (earlier and earlier ~= '') and cjson.decode(earlier) or {}
  deaths[#deaths + 1] = {worker = worker, attempt = attempt, kind = kind, evidence = evidence, at = NOW}
  local others = {}
  local different = 0
  local function blame(found)
    for _, death in ipairs(found) do
      if death.kind == 'worker' and not others[death.worker] then
        others[death.worker] = true
        different = different + 1
      end
    end
  end
  blame(deaths)
  for rank = 0, (kind == 'worker' and tonumber(gang) or 0) - 1 do
    local found = redis.call('HGET', P .. 't:' .. member_id(gang_of(id), rank), 'deaths')
    if found and found ~= '' then blame(cjson.decode(found)) end
  end
  local written = cjson.encode(deaths)
  local lost = kind == 'worker' and 'WorkerLost' or 'RunnerDied'
  local most = tonumber(lose_most) or LOST_WORKERS
  if different >= most or tries + 1 > tonumber(retries) then
    local workers = most == 1 and 'its worker' or (most == 2 and 'two' or text(most)) .. ' different workers'
    local why = different >= most and workers .. ' died running it' or 'no retries left'
    local to = finish(id, state, 'dead', {'deaths', written, 'tries', text(tries + 1), 'reason', why,
      'error', error_json(lost, evidence, false)}, keep_ms)
    return gang and end_gang(id, gang, to, keep_ms) or to
  end
  local fields = {'deaths', written, 'tries', text(tries + 1), 'reason', evidence, 'error', error_json(lost, evidence, true)}
  if gang then return gang_again(id, state, gang, delay_ms, tries + 1, keep_ms, fields) end
  return requeue(id, state, delay_ms, fields)
end

-- End all attempts of a lost worker, so that other workers can run the tasks.
local function lose(worker, evidence, keep_ms)
  for _, id in ipairs(redis.call('SMEMBERS', P .. 'on:' .. worker)) do
    died(id, worker, 'worker', evidence, 0, keep_ms)
  end
  redis.call('DEL', P .. 'on:' .. worker)
end

-- Return the epoch of a worker that can get tasks, or 'none'.
local EPOCHS = {}
local function epoch_of(worker)
  if not EPOCHS[worker] then
    local epoch, state = unpack(redis.call('HMGET', P .. 'w:' .. worker, 'epoch', 'state'), 1, 2)
    EPOCHS[worker] = state == 'online' and epoch or 'none'
  end
  return EPOCHS[worker]
end

-- An assignment is {id, attempt so far, worker, its epoch, placement JSON, thousandths of a GPU}. Its answer is
-- {params, correlation id}, or {reason for the refusal}, or {'later'}. Return the fields of the row of an assigned task.
local function given_fields(each)
  local _, attempt, worker, epoch, place, milli = unpack(each, 1, 6)
  return {'state', 'assigned', 'attempt', text(attempt + 1), 'worker', worker, 'epoch', text(epoch), 'place', place,
    'milli', text(milli), 'assigned', text(NOW), 'started', '0', 'cancel', '0', 'reason', ''}
end

local function give(id, worker)
  redis.call('SADD', P .. 'on:' .. worker, id)
  redis.call('ZADD', P .. 'of:' .. worker, NOW, id)
end

local function moment_of(ms) return ms and ms < 0 and NOW - ms or ms or 0 end

-- Write when a new task may begin, when it expires, and how many workers it may lose. Returns when it may begin.
local function keep_wishes(id, not_before, expires, lost, needs)
  local begins, ends = moment_of(not_before), moment_of(expires)
  if begins > 0 then redis.call('HSET', P .. 't:' .. id, 'not_before', text(begins)) end
  if begins > NOW then
    redis.call('HSET', P .. 't:' .. id, 'after', text(begins))
    if not needs then redis.call('ZADD', P .. 'due:not-before', begins, id) end
  end
  if ends > 0 then
    redis.call('HSET', P .. 't:' .. id, 'expires', text(ends))
    redis.call('ZADD', P .. 'due:expires', ends, id)
  end
  if lost and lost ~= 2 then redis.call('HSET', P .. 't:' .. id, 'lost_workers', text(lost)) end
  return begins
end

-- Write the row of a new task, with columns as in `submit`, and list it. `given` has the fields of its assignment if it
-- goes to a worker at once. Returns when it may begin, and its state.
local function add_task(task, given)
  local id, spec, params, retries, idem, correlation, tenant, level, not_before, expires, lost, needs, gang =
    unpack(task, 1, 13)
  local key = P .. 't:' .. id
  local begins = keep_wishes(id, not_before, expires, lost, needs)
  local state = given and 'assigned' or (begins > NOW or needs) and 'scheduled' or 'queued'
  redis.call('HSET', key, 'spec', spec, 'params', params, 'tries', '0', 'retries', text(retries),
    'created', text(NOW), 'correlation', correlation, 'tenant', tenant, 'level', text(level),
    unpack(given or {'state', state, 'attempt', '0'}))
  if idem ~= '' and #params > LARGE_PARAMS then redis.call('HSET', key, 'digest', redis.sha1hex(params)) end
  enlist(id, state, NOW, tenant)
  if state == 'queued' then waits(text(level), 1) end
  if needs then
    redis.call('HSET', key, 'needs', needs, 'open', '-1', 'linked', '1')
    see_to_links(id)
  end
  if gang and gang > 0 then redis.call('HSET', key, 'gang', text(gang)) end
  return begins, state
end

-- By owner, by level, and at 0 of those scheduled for later: the tasks that wait, and those that this call has accepted.
local WAITING, PROMISED, LATER = {}, {}, 0
local function how_many_wait(name)
  if name == LATER then return redis.call('ZCARD', P .. 's:scheduled') end
  if type(name) == 'number' then return tonumber(redis.call('HGET', P .. 'levels', text(name - 1)) or 0) end
  local place = P .. 'o:' .. name .. ':'
  return redis.call('ZCARD', place .. 'queued') + redis.call('ZCARD', place .. 'scheduled')
end
local function is_full(name, count, most)
  if count == 0 or most == 0 then return false end
  if not WAITING[name] then WAITING[name] = how_many_wait(name) end
  return WAITING[name] + (PROMISED[name] or 0) + count > most
end

-- Return 1 if there is room for a unit, of which `later` tasks are scheduled, else the code of `submit`.
local function judge_unit(unit, later)
  local owner, most_waiting, most_at_level, most_gpu_ms, wanted = unpack(unit, 1, 5)
  local all = 0
  for _, count in ipairs(wanted) do all = all + count end
  if all > 0 and most_gpu_ms > 0 and tonumber(redis.call('HGET', P .. 'used:' .. day(), owner) or 0) >= most_gpu_ms then
    return -4
  end
  if is_full(owner, all, most_waiting) then return -2 end
  for at, count in ipairs(wanted) do
    if is_full(at, count, most_at_level) then return -3 end
  end
  if is_full(LATER, later, most_at_level) then return -3 end
  add(PROMISED, LATER, later)
  add(PROMISED, owner, all)
  for at, count in ipairs(wanted) do add(PROMISED, at, count) end
  return 1
end

-- The columns of a schedule's row, first those that are numbers.
local SCHEDULE = {'jitter', 'delay', 'next', 'created', 'last', 'fired', 'passed_over', 'owner', 'name', 'key', 'schedule',
  'zone', 'missed', 'overlap', 'task', 'state', 'reason', 'last_task', 'trouble'}
local SCHEDULE_NUMBERS = 7
local function schedule_row(id)
  local row, found = {id}, redis.call('HMGET', P .. 'sc:' .. id, unpack(SCHEDULE))
  if not found[8] then return nil end
  for at = 1, #SCHEDULE do
    row[at + 1] = at <= SCHEDULE_NUMBERS and tonumber(found[at] or 0) or found[at] or ''
  end
  return row
end

-- List an active schedule by when it fires: its next moment and its constant delay.
local function wait_for_moment(id, at, delay)
  redis.call('ZADD', P .. 'due:schedules', text(at + delay), id)
end
