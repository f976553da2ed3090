-- Read the events after a given one, oldest first, or the latest.
-- Arguments: after {generation, number}, {0, 0}: from the first stored one, {}: the latest; most events
-- Answers {1 if events between `after` and these are gone, id to continue from, events {id, name, owner, ms, data}}. If
--   `after` belongs to another store (emptied, restored), there are no events and the id is that of the last one
local after, most = ARG[1], ARG[2]
local key = P .. 'events'
local newest = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)
local last = newest[1] and newest[1][1] or '0-0'
local found, lost = {}, false
if #after == 0 then
  for _, entry in ipairs(most > 0 and redis.call('XREVRANGE', key, '+', '-', 'COUNT', most) or {}) do
    table.insert(found, 1, entry)
  end
else
  local here = text(after[1]) .. '-' .. text(after[2])
  found = redis.call('XRANGE', key, '(' .. here, '+', 'COUNT', most)
  local first = found[1] and found[1][1]
  if here == '0-0' then
    lost = first and not string.find(first, '-0$')
  elseif first then
    lost = first ~= text(after[1]) .. '-' .. text(after[2] + 1)
  else
    lost = last ~= here
  end
end
local events = {}
for number, entry in ipairs(found) do
  local fields = entry[2]
  events[number] = {entry[1], fields[2], fields[4], tonumber(fields[6]), fields[8]}
end
return cmsgpack.pack({{}, {lost and 1 or 0, found[#found] and found[#found][1] or last, events}})
