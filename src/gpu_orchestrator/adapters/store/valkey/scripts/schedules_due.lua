#!lua flags=allow-oom
-- Read schedules that are due, the longest due first. One that is listed at another time than its row has is listed
-- again.
-- Arguments: most of them
-- Answers {the time, rows with the parameters of their tasks}
local rows = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'due:schedules', '-inf', NOW, 'LIMIT', 0, ARG[1])) do
  local row = schedule_row(id)
  local state, at, delay = unpack(redis.call('HMGET', P .. 'sc:' .. id, 'state', 'next', 'delay'), 1, 3)
  if state ~= 'active' or at == '0' then
    redis.call('ZREM', P .. 'due:schedules', id)
  elseif tonumber(at) + tonumber(delay) > NOW then
    wait_for_moment(id, tonumber(at), tonumber(delay))
  else
    row[#row + 1] = redis.call('HGET', P .. 'sc:' .. id, 'params')
    rows[#rows + 1] = row
  end
end
return cmsgpack.pack({{}, {NOW, rows}})
