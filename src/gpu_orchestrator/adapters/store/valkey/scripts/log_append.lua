-- Append what attempts printed to the logs of their tasks. A log has a bound, and so have all logs together: what is
-- oldest goes first. A piece counts only if its worker holds the attempt; what is stored already counts once.
-- Arguments: most bytes of a log, most bytes of all logs,
--   pieces {id, attempt, worker, epoch, position in what the attempt printed, text}
-- Answers per piece 1 if its worker holds the attempt, else 0
local most, most_of_all, pieces = ARG[1], ARG[2], ARG[3]
local told, written = {}, {}

-- Return the last entry of a log: where it ends, its attempt, the position after it in that attempt, its text.
local function last_of(key)
  local entry = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  if not entry then return 0, 0, 0, '\n' end
  return tonumber(string.match(entry[1], '^%d+')), tonumber(entry[2][2]), tonumber(entry[2][4]), entry[2][6]
end

-- Return the text from this byte on, or from the next one where a character begins.
local function from(said, at)
  while at <= #said and string.byte(said, at) >= 128 and string.byte(said, at) < 192 do at = at + 1 end
  return string.sub(said, at)
end

local function append(id, attempt, worker, position, said)
  local key = P .. 'log:' .. id
  local stored_to, last_attempt, stored_position, last_said = last_of(key)
  if last_attempt ~= attempt then stored_position = 0 end
  local ends = position + #said
  if position < stored_position then said = from(said, stored_position - position + 1) end
  if #said > most then said = from(said, #said - most + 1) end
  if said == '' or ends <= stored_position then return end
  local missing = ends - #said - stored_position
  if last_attempt ~= 0 and last_attempt ~= attempt then
    said = (string.sub(last_said, -1) == '\n' and '' or '\n') .. '--- attempt ' .. text(attempt) .. ' on ' .. worker ..
      ' ---\n' .. said
  end
  redis.call('XADD', key, text(stored_to + missing + #said) .. '-0', 'a', text(attempt), 'p', text(ends), 't', said)
  redis.call('HINCRBY', P .. 'logs:sizes', '', #said + LOG_ENTRY)
  redis.call('HINCRBY', P .. 'logs:sizes', id, #said + LOG_ENTRY)
  written[id] = true
end

-- Drop the oldest entries of a log that is a quarter larger than its bound, but keep at least as much as the bound
-- allows. Cutting it at each write would cost more.
local function cut(id)
  local key, size = P .. 'log:' .. id, tonumber(redis.call('HGET', P .. 'logs:sizes', id))
  if size <= most * 1.25 then return end
  local freed, dropped, from = 0, 0, '-'
  repeat
    local page = redis.call('XRANGE', key, from, '+', 'COUNT', 20)
    local is_enough = #page < 20
    for _, entry in ipairs(page) do
      local cost = #entry[2][6] + LOG_ENTRY
      is_enough = is_enough or size - freed - cost < most
      if size - freed - cost < most then break end
      freed, dropped, from = freed + cost, dropped + 1, '(' .. entry[1]
    end
  until is_enough
  if dropped == 0 then return end
  redis.call('XTRIM', key, 'MAXLEN', redis.call('XLEN', key) - dropped)
  redis.call('HINCRBY', P .. 'logs:sizes', '', -freed)
  redis.call('HINCRBY', P .. 'logs:sizes', id, -freed)
end

for number, piece in ipairs(pieces) do
  local id, attempt, worker, epoch, position, said = unpack(piece, 1, 6)
  local task = redis.call('HMGET', P .. 't:' .. id, 'state', 'attempt', 'worker', 'epoch')
  told[number] = holds(task, attempt, worker, epoch) and 1 or 0
  if told[number] == 1 then append(id, attempt, worker, position, said) end
end
for id in pairs(written) do
  cut(id)
  redis.call('ZADD', P .. 'logs', NOW, id)
end
drop_logs(most_of_all)
return answer(0, told)
