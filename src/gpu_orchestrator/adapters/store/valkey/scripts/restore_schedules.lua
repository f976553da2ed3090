-- Rebuild the lists of restored schedules from their rows.
-- Arguments: ids
-- Answers nothing
for _, id in ipairs(ARG[1]) do
  local owner, state, at, delay, created = unpack(
    redis.call('HMGET', P .. 'sc:' .. id, 'owner', 'state', 'next', 'delay', 'created'), 1, 5)
  if owner then
    redis.call('ZADD', P .. 'schedules', created, id)
    redis.call('ZADD', P .. 'schedules:of:' .. owner, created, id)
    if state == 'active' and at ~= '0' then wait_for_moment(id, tonumber(at), tonumber(delay)) end
  end
end
return cmsgpack.pack({{}, false})
