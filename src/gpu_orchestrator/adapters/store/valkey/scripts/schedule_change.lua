#!lua flags=allow-oom
-- Pause, resume or delete a schedule.
-- Arguments: owner whose schedules may be changed or '' for all, id, 'pause' | 'resume' | 'delete', who pauses it,
--   next moment of one that is resumed, the key that it runs under if it stopped, or ''
-- Answers {its state before, or '' if it is unknown, {its row now, or before it was deleted}}
local owner, id, change, who, at, new_key = unpack(ARG, 1, 6)
local key = P .. 'sc:' .. id
local tenant, state, delay = unpack(redis.call('HMGET', key, 'owner', 'state', 'delay'), 1, 3)
if not tenant or not may_touch(owner, tenant) then return cmsgpack.pack({{}, {'', {}}}) end
local row = schedule_row(id)
if change == 'delete' then
  redis.call('DEL', key)
  redis.call('ZREM', P .. 'schedules', id)
  redis.call('ZREM', P .. 'schedules:of:' .. tenant, id)
  redis.call('ZREM', P .. 'due:schedules', id)
elseif change == 'pause' and state == 'active' then
  redis.call('HSET', key, 'state', 'paused', 'reason', 'paused by ' .. who, 'next', '0', 'trouble', '')
  redis.call('ZREM', P .. 'due:schedules', id)
elseif change == 'resume' and (state == 'paused' or (state == 'stopped' and new_key ~= '')) then
  if state == 'stopped' then redis.call('HSET', key, 'key', new_key) end
  redis.call('HSET', key, 'state', 'active', 'reason', '', 'next', text(at))
  wait_for_moment(id, at, tonumber(delay))
end
return cmsgpack.pack({{}, {state, {schedule_row(id) or row}}})
