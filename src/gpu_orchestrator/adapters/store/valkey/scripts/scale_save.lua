#!lua flags=allow-oom
-- Store what the autoscaler decided, with an event for each step, in one go.
-- Arguments: fence, state JSON, events {data JSON, ...}
-- Answers whether it was written: only the leader may write
--   scaling  string  the state
local fence, state, events = ARG[1], ARG[2], ARG[3]
if not leads(fence) then return answer(fence, false) end
redis.call('SET', P .. 'scaling', state)
for _, data in ipairs(events) do emit('scale_event', '', data) end
return answer(fence, true)
