#!lua
-- Store a schedule. If its owner has one of this name, replace it or leave it; one that stopped begins again.
-- Arguments: id, owner, 1 to replace, most of one owner, most of all, next moment, delay ms,
--   columns {name, value, ...}, among them `definition`: what makes it different from others
-- Answers {'saved' | 'known' | 'other' | 'full' | 'all full', {its row}}
local id, owner, replaces, most_own, most, at, delay, columns = unpack(ARG, 1, 8)
local key = P .. 'sc:' .. id
local given = {}
for number = 1, #columns, 2 do given[columns[number]] = columns[number + 1] end

local function save(state)
  redis.call('HSET', key, unpack(columns))
  redis.call('HSET', key, 'state', state, 'reason', '', 'trouble', '', 'delay', text(delay))
end

local function begin(state)
  redis.call('HSET', key, 'next', text(at))
  if state == 'active' then wait_for_moment(id, at, delay) end
end

local before = redis.call('HMGET', key, 'definition', 'state', 'schedule', 'zone', 'delay', 'next')
local definition, state = before[1], before[2]
local is_same = definition == given.definition
if not definition then
  if redis.call('ZCARD', P .. 'schedules:of:' .. owner) >= most_own then return cmsgpack.pack({{}, {'full', {}}}) end
  if redis.call('ZCARD', P .. 'schedules') >= most then return cmsgpack.pack({{}, {'all full', {}}}) end
  redis.call('HSET', key, 'owner', owner, 'created', text(NOW), 'fired', '0', 'passed_over', '0')
  redis.call('ZADD', P .. 'schedules', NOW, id)
  redis.call('ZADD', P .. 'schedules:of:' .. owner, NOW, id)
  save('active')
  begin('active')
elseif not is_same and replaces == 0 then
  return cmsgpack.pack({{}, {'other', {schedule_row(id)}}})
elseif is_same and replaces == 0 and state ~= 'stopped' then
  return cmsgpack.pack({{}, {'known', {schedule_row(id)}}})
else
  local now = state == 'paused' and state or 'active'
  local keeps_time = state == 'active' and before[3] == given.schedule and before[4] == given.zone
  save(now)
  if keeps_time then wait_for_moment(id, tonumber(before[6]), delay) else begin(now) end
end
return cmsgpack.pack({{}, {definition and 'known' or 'saved', {schedule_row(id)}}})
