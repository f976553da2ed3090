-- Read a part of what the newest attempt at a task sent before its end, with the state of the task at the same moment. A
-- named reader of the task's own owner holds the task back for a while: what it has not read is not dropped to make room.
-- Arguments: id, attempt that the reader knows, number of the next value that it wants of that attempt, number of the first
--   value to read (of the newest attempt, if that is another: the first), most bytes (more by up to one entry),
--   name of the reader or '', the owner for which it reads, for how many ms it holds the task back
-- Answers {state or '' if unknown, owner, attempt, how many values it has sent, 1 if values were refused lately because of a
-- reader, else 0, entries {number of the first value, values}}
local id, knows, wanted, after, most, reader, owner, hold_ms = unpack(ARG, 1, 8)
local MOST_READERS, LATELY_MS = 16, 3000
local key = P .. 'log:' .. id .. VALUES
local row = redis.call('HMGET', P .. 't:' .. id, 'state', 'tenant', 'attempt', 'values')
local attempt = tonumber(row[3] or 0)
local last = log_entry(last_log_entry(id .. VALUES, row[4]))
local ends = last.attempt == attempt and last.at or 0
if knows ~= attempt then wanted, after = 0, 0 end

local function note_reader()
  local readers = P .. 'reading:' .. id
  if redis.call('HLEN', readers) >= MOST_READERS and redis.call('HEXISTS', readers, reader) == 0 then
    for _, name in ipairs(redis.call('HKEYS', readers)) do
      if tonumber(string.match(redis.call('HGET', readers, name), '%d+$')) <= NOW then redis.call('HDEL', readers, name) end
    end
    if redis.call('HLEN', readers) >= MOST_READERS then return end
  end
  redis.call('HSET', readers, reader, text(attempt) .. ' ' .. text(wanted) .. ' ' .. text(NOW + hold_ms))
  redis.call('PEXPIRE', readers, hold_ms)
end

if reader ~= '' and row[1] and not ENDS[row[1]] and row[2] == owner then note_reader() end

local refused = string.match(redis.call('HGET', P .. 'reading:' .. id, '') or '', '%d+$')
local is_refused = refused and NOW - tonumber(refused) < LATELY_MS
local entries, size, from = {}, 0, ends > after and first_log_entry(key, after) or 0
while ends > after and size < most do
  local item = redis.call('LINDEX', key, from)
  if not item then break end
  local entry = log_entry(item)
  entries[#entries + 1] = {entry.position, entry.said}
  size, from = size + #entry.said, from + 1
end
return cmsgpack.pack({{}, {row[1] or '', row[2] or '', attempt, ends, is_refused and 1 or 0, entries}})
