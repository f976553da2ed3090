-- Append what attempts sent before their end to the values of their tasks. The values of a new attempt replace those of the
-- one before. They have a bound: the oldest go first, but none that a reader who holds the task back has not read. Together
-- with all logs they have another, see `log_append`. Values that are stored already count once.
-- Arguments: most bytes of one task's values, most bytes of all logs,
--   pieces {id, attempt, worker, epoch, number of its first value, how many, how many its worker knows to be taken, values}
-- Answers per piece {how many values of this attempt are taken, or -1 if its worker does not hold it; 1 if the piece is to be
-- sent again later, else 0}
local most, most_of_all, pieces = ARG[1], ARG[2], ARG[3]
local SMALL = 4096 -- entries are filled up to this many bytes, so that short values cost little
local FIRST_READER_MS = 2000 -- after it was assigned, a task waits for its first reader before values are dropped
local TRACE, OWNER, GIVEN = 5, 6, 7 -- columns of a task's row here, after STATE, ATTEMPT, WORKER and EPOCH
local told, owners = {}, {}

-- Return the values without the first ones.
local function without(said, count)
  local at = 1
  for _ = 1, count do at = string.find(said, '\n', at, true) + 1 end
  return string.sub(said, at)
end

-- Return the number of the first value that a reader of this attempt has not read; nil if none holds it back. A reader of an
-- earlier attempt has read none.
local function held_from(id, row)
  local from
  local attempt, readers = tonumber(row[ATTEMPT]), redis.call('HVALS', P .. 'reading:' .. id)
  if #readers == 0 and NOW - tonumber(row[GIVEN] or 0) < FIRST_READER_MS then return 0 end
  for _, reader in ipairs(readers) do
    local its, number, until_ms = string.match(reader, '^(%d+) (%d+) (%d+)$')
    if tonumber(until_ms) > NOW then
      local at = tonumber(its) == attempt and tonumber(number) or 0
      from = math.min(from or at, at)
    end
  end
  return from
end

-- Drop the oldest entries until there is room; return whether there is.
local function make_room(id, name, row, size, more)
  if size == 0 or size + more <= most then return true end
  local key, held, freed = P .. 'log:' .. name, held_from(id, row), 0
  while size > freed and size - freed + more > most do
    local entry = log_entry(redis.call('LINDEX', key, 0))
    if held and entry.at > held then
      local readers = P .. 'reading:' .. id -- they are told, so that they say what they have
      if redis.call('EXISTS', readers) == 1 then redis.call('HSET', readers, '', '0 0 ' .. text(NOW)) end
      break
    end
    redis.call('LPOP', key)
    freed = freed + #entry.said + LOG_ENTRY
  end
  if freed > 0 then grow_log(name, -freed) end
  return size - freed == 0 or size - freed + more <= most
end

-- Return how many values are taken now, and whether the piece is to be sent again later.
local function append(id, row, attempt, at, count, known, said)
  local name, ends = id .. VALUES, at + count
  local key = P .. 'log:' .. name
  local last = log_entry(last_log_entry(name, row[TRACE]))
  if last.attempt ~= attempt then
    if redis.call('HEXISTS', P .. 'logs:sizes', name) == 1 then forget_log(name) end
    if row[TRACE] then redis.call('HDEL', P .. 't:' .. id, 'values') end
    last = {at = 0, said = '', position = 0}
  end
  if ends <= last.at then return {last.at, 0} end
  if at > last.at and known < at then return {last.at, 1} end -- what is between was lost on the way
  if at < last.at then said, at = without(said, last.at - at), last.at end
  local is_new = redis.call('HEXISTS', P .. 'logs:sizes', name) == 0
  local size = is_new and 0 or tonumber(redis.call('HGET', P .. 'logs:sizes', name)) - LOG_BASE
  if not make_room(id, name, row, size, #said + LOG_ENTRY) then return {last.at, 1} end
  local head = text(ends) .. ' ' .. text(attempt) .. ' '
  if at == last.at and #said + #last.said < SMALL and redis.call('EXISTS', key) == 1 then
    redis.call('LSET', key, -1, head .. text(last.position) .. ' ' .. last.said .. '\n' .. said)
    grow_log(name, #said + 1)
  else
    redis.call('RPUSH', key, head .. text(at) .. ' ' .. said)
    grow_log(name, #said + LOG_ENTRY + (is_new and LOG_BASE or 0))
  end
  return {ends, 0}
end

for number, piece in ipairs(pieces) do
  local id, attempt, worker, epoch, at, count, known, said = unpack(piece, 1, 8)
  local row = redis.call('HMGET', P .. 't:' .. id, 'state', 'attempt', 'worker', 'epoch', 'values', 'tenant', 'assigned')
  told[number] = {-1, 0}
  if holds(row, attempt, worker, epoch) then
    told[number] = append(id, row, attempt, at, count, known, said)
    owners[id .. VALUES] = row[OWNER] or ''
  end
end
local several, read = redis.call('ZCARD', P .. 'apis') > 1, {}
for name, owner in pairs(owners) do
  if GROWN[name] then
    note_log(name, owner)
    local id = string.sub(name, 1, -1 - #VALUES)
    if several and redis.call('EXISTS', P .. 'reading:' .. id) == 1 then read[#read + 1] = id end
  end
end
if #read > 0 then redis.call('PUBLISH', P .. 'values', cmsgpack.pack(read)) end -- for readers at another process
drop_logs(most_of_all)
return answer(0, told)
