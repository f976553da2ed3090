-- Tell how many waiting tasks come before each of some waiting ones, by priority and age.
-- Arguments: ids
-- Answers per id its position from 1, or 0 if it does not wait. Exact (but for turns of owners and for retries that rest)
--   while few tasks wait or all have one level; else between the bounds that the counts by level allow
local BANDS = {['2'] = 1, ['3'] = 2} -- levels from `high` on, which no task of a lower one ever passes
local POINT_MS = 10000 -- one point of priority is worth this much waiting, as in the engine's order
local FEW, MOST_BYTES = 500, 1024 * 1024 -- specs may have 64 kB each: other clients wait while they are read
local queued = P .. 's:queued'
local waiting, levels, kinds = redis.call('ZCARD', queued), {}, 0
local counts = redis.call('HGETALL', P .. 'levels')
for at = 1, #counts, 2 do
  levels[counts[at]] = tonumber(counts[at + 1])
  if levels[counts[at]] > 0 then kinds = kinds + 1 end
end

-- Return the position of every waiting task, by reading all of them; nil if that is too much.
local function exact()
  local order, position, bytes = {}, {}, 0
  for _, id in ipairs(redis.call('ZRANGE', queued, 0, -1)) do
    local level, created, spec = unpack(redis.call('HMGET', P .. 't:' .. id, 'level', 'created', 'spec'), 1, 3)
    bytes = bytes + #(spec or '')
    if bytes > MOST_BYTES then return nil end
    local priority = tonumber(spec and string.match(spec, '"priority":(%d+)') or 50)
    order[#order + 1] = {id, BANDS[level] or 0, (tonumber(created) or 0) - priority * POINT_MS}
  end
  table.sort(order, function(a, b)
    if a[2] ~= b[2] then return a[2] > b[2] end
    if a[3] ~= b[3] then return a[3] < b[3] end
    return a[1] < b[1]
  end)
  for at, each in ipairs(order) do position[each[1]] = at end
  return position
end

-- Estimate a position: all tasks of higher levels come first, then the older ones of its own, as many of all older
-- ones as its level has of all.
local function estimate(id, older)
  local level = redis.call('HGET', P .. 't:' .. id, 'level') or '1'
  local own, higher = math.max(levels[level] or 0, 1), 0
  for other, count in pairs(levels) do
    if other > level then higher = higher + count end
  end
  local least, most = older - (waiting - own), math.min(older, own - 1)
  local part = math.floor(older * own / math.max(waiting, 1))
  return higher + math.max(math.min(part, most), least, 0) + 1
end

local known = kinds > 1 and waiting <= FEW and exact()
local found = {}
for number, id in ipairs(ARG[1]) do
  local older = redis.call('ZRANK', queued, id)
  if not older then
    found[number] = 0
  elseif known then
    found[number] = known[id] or 0
  else
    found[number] = kinds > 1 and estimate(id, older) or older + 1
  end
end
return cmsgpack.pack({{}, found})
