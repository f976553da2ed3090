-- Append what attempts printed to the logs of their tasks. A log has a bound: what is oldest goes first. So have all
-- logs together: the oldest of the owner with most goes first. A piece counts only if its worker holds the attempt;
-- what is stored already counts once.
-- Arguments: most bytes of a log, most bytes of all logs,
--   pieces {id, attempt, worker, epoch, position in what the attempt printed, text}
-- Answers per piece 1 if its worker holds the attempt, else 0
local most, most_of_all, pieces = ARG[1], ARG[2], ARG[3]
local told, owners = {}, {}
local LOG, OWNER = 5, 6 -- columns of a task's row here, after STATE, ATTEMPT, WORKER and EPOCH

-- Return the text from this byte on, or from the next one where a character begins.
local function from(said, at)
  while at <= #said and string.byte(said, at) >= 128 and string.byte(said, at) < 192 do at = at + 1 end
  return string.sub(said, at)
end

local function append(id, attempt, worker, position, said, dropped)
  local key = P .. 'log:' .. id
  local last, is_new = log_entry(last_log_entry(id, dropped)), redis.call('EXISTS', key) == 0
  local stored_position = last.attempt == attempt and last.position or 0
  local ends = position + #said
  if position < stored_position then said = from(said, stored_position - position + 1) end
  if #said > most then said = from(said, #said - most + 1) end
  if said == '' or ends <= stored_position then return end
  local missing = ends - #said - stored_position
  if last.attempt ~= 0 and last.attempt ~= attempt then
    said = (string.sub(last.said, -1) == '\n' and '' or '\n') .. '--- attempt ' .. text(attempt) .. ' on ' .. worker ..
      ' ---\n' .. said
  end
  local at = last.at + missing + #said
  redis.call('RPUSH', key, text(at) .. ' ' .. text(attempt) .. ' ' .. text(ends) .. ' ' .. said)
  grow_log(id, #said + LOG_ENTRY + (is_new and LOG_BASE or 0))
end

-- Drop the oldest entries of a log that is a quarter larger than its bound, but keep at least as much as the bound
-- allows. Cutting it at each write would cost more.
local function cut(id)
  local key, size = P .. 'log:' .. id, tonumber(redis.call('HGET', P .. 'logs:sizes', id)) - LOG_BASE
  if size <= most * 1.25 then return end
  local freed, dropped, is_enough = 0, 0, false
  repeat
    local page = redis.call('LRANGE', key, dropped, dropped + 19)
    is_enough = #page < 20
    for _, entry in ipairs(page) do
      local cost = #log_entry(entry).said + LOG_ENTRY
      if size - freed - cost < most then
        is_enough = true
        break
      end
      freed, dropped = freed + cost, dropped + 1
    end
  until is_enough
  if dropped == 0 then return end
  redis.call('LTRIM', key, dropped, -1)
  grow_log(id, -freed)
end

for number, piece in ipairs(pieces) do
  local id, attempt, worker, epoch, position, said = unpack(piece, 1, 6)
  local task = redis.call('HMGET', P .. 't:' .. id, 'state', 'attempt', 'worker', 'epoch', 'log', 'tenant')
  told[number] = holds(task, attempt, worker, epoch) and 1 or 0
  if told[number] == 1 then append(id, attempt, worker, position, said, task[LOG]) end
  owners[id] = task[OWNER] or ''
end
for id, owner in pairs(owners) do
  if GROWN[id] then
    cut(id)
    note_log(id, owner)
  end
end
drop_logs(most_of_all)
return answer(0, told)
